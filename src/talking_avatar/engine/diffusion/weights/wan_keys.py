"""Names of diffusers' Wan checkpoints in this project's terms.

Takes: a tensor's name in ``vae/`` or ``transformer/`` of a Wan2.2-TI2V-5B folder.
Gives: its name here, or None for a name that such a folder should not have.
Never: opens files; `wan_import` does.
"""

from __future__ import annotations

import re

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


def vae_name(name: str) -> str:
    """Name an autoencoder tensor: ``encoder.…`` or ``decoder.…``."""
    for pattern, replacement in _VAE_RULES:
        name = re.sub(pattern, replacement, name)
    return name
