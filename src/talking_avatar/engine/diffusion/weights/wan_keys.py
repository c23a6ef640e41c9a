"""Names of diffusers' Wan checkpoints in this project's terms.

Takes: a tensor's name in ``transformer/`` or ``vae/`` of a Wan2.2-TI2V-5B folder.
Gives: its name here; a name that no rule knows comes back as it is, and is then found unexpected.
Never: opens files; `wan_import` does.

Their ``norm2`` is the norm before cross-attention (the original Wan calls that one ``norm3``);
``norm1`` and ``norm3`` have no weights.
"""

from __future__ import annotations

import re

_DIT_RULES: tuple[tuple[str, str], ...] = (
    (r"^condition_embedder\.time_embedder\.linear_1\.", "time_embedding.hidden."),
    (r"^condition_embedder\.time_embedder\.linear_2\.", "time_embedding.output."),
    (r"^condition_embedder\.time_proj\.", "modulation."),
    (r"^condition_embedder\.text_embedder\.linear_1\.", "text_embedding.hidden."),
    (r"^condition_embedder\.text_embedder\.linear_2\.", "text_embedding.output."),
    (r"^proj_out\.", "output."),
    (r"^scale_shift_table$", "output_table"),
    (r"^blocks\.", "layers."),
    (r"\.scale_shift_table$", ".table"),
    (r"\.attn1\.", ".attention."),
    (r"\.attn2\.", ".cross."),
    (r"\.norm2\.", ".cross_norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".out."),
    (r"\.norm_([qk])\.", r".\1_norm."),
    (r"\.ffn\.net\.0\.proj\.", ".feed_forward.up."),
    (r"\.ffn\.net\.2\.", ".feed_forward.down."),
)
_VAE_RULES: tuple[tuple[str, str], ...] = (
    (r"^quant_conv\.", "encoder.to_latent."),
    (r"^post_quant_conv\.", "decoder.from_latent."),
    (r"\.(?:down|up)_blocks\.(\d+)\.", r".stages.\1."),
    (r"\.mid_block\.resnets\.0\.", ".middle.before."),
    (r"\.mid_block\.resnets\.1\.", ".middle.after."),
    (r"\.mid_block\.attentions\.0\.", ".middle.attention."),
    (r"\.resnets\.(\d+)\.", r".residuals.\1."),
    (r"\.conv_shortcut\.", ".shortcut."),
    (r"\.(down|up)sampler\.resample\.1\.", r".\1sample.space."),
    (r"\.(down|up)sampler\.time_conv\.", r".\1sample.time."),
    (r"\.to_qkv\.", ".qkv."),
    (r"\.proj\.", ".out."),
    (r"\.gamma$", ".weight"),
)


def dit_name(name: str) -> str:
    """Name a tensor of ``transformer/``."""
    return _renamed(name, _DIT_RULES)


def vae_name(name: str) -> str:
    """Name a tensor of ``vae/``: ``encoder.…`` or ``decoder.…``."""
    return _renamed(name, _VAE_RULES)


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
