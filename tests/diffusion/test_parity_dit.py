"""The Wan arrangement against diffusers' own transformer, at reduced width on random weights.

Causality over chunks is not something that transformer has; its forward takes a noise level per
token, so one forward over [photo at 0 | past frames as they entered their last pass | this frame]
with a block-causal mask in its attention is what our cached path must equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.model.dit import DiT
from talking_avatar.engine.diffusion.model.noise import chunk_noise
from talking_avatar.engine.diffusion.model.rope import RopeTable
from talking_avatar.engine.diffusion.ranks.comm import LocalComm
from talking_avatar.engine.diffusion.weights.checkpoint import Weights
from talking_avatar.engine.diffusion.weights.rank_part import fill_rank
from talking_avatar.engine.diffusion.weights.wan_import import open_wan

diffusers = pytest.importorskip("diffusers")
from diffusers.models.embeddings import get_1d_rotary_pos_embed  # noqa: E402
from diffusers.models.transformers.transformer_wan import WanAttnProcessor  # noqa: E402

FRAMES = 12


def random_transformer(config: AvatarDiTConfig) -> torch.nn.Module:
    torch.manual_seed(11)
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, config.patch, config.patch),
        num_attention_heads=config.num_heads,
        attention_head_dim=config.head_dim,
        in_channels=config.latent_channels,
        out_channels=config.latent_channels,
        text_dim=config.text_channels,
        freq_dim=config.time_channels,
        ffn_dim=config.ffn,
        num_layers=config.num_layers,
        eps=config.eps,
    ).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and "norm" in name:  # ones would hide a forgotten weight
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def random_codec(config: AvatarDiTConfig) -> torch.nn.Module:
    codec = config.codec
    return diffusers.AutoencoderKLWan(
        base_dim=codec.encoder_width,
        decoder_base_dim=codec.decoder_width,
        z_dim=codec.latent_channels,
        dim_mult=list(codec.multipliers),
        num_res_blocks=codec.num_residuals,
        temperal_downsample=list(codec.halves_time),
        latents_mean=[0.0] * codec.latent_channels,
        latents_std=[1.0] * codec.latent_channels,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=4,
        scale_factor_spatial=16,
    )


@dataclass
class Pair:
    """The same weights on both sides."""

    theirs: torch.nn.Module
    ours: Weights


@pytest.fixture(scope="module")
def pair(tiny_wan: AvatarDiTConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("wan")
    theirs = random_transformer(tiny_wan)
    theirs.save_pretrained(folder / "transformer")
    random_codec(tiny_wan).save_pretrained(folder / "vae")
    with open_wan(folder, base=tiny_wan) as weights:
        yield Pair(theirs, weights)


class Causal(WanAttnProcessor):
    """Their attention, with a mask over frames."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self._mask = mask

    def __call__(self, attn, hidden, context=None, attention_mask=None, rotary_emb=None):
        return super().__call__(attn, hidden, context, self._mask, rotary_emb)


class Rerotated(WanAttnProcessor):
    """Their projections and norms; per query frame, all raw keys are turned again from scratch.

    The sink stays at 0, the query frame is where the ring's rule says, and past frames stand just
    before it: what a reset must not change.
    """

    def __init__(self, config: AvatarDiTConfig, num_frames: int, positions: list[int]) -> None:
        super().__init__()
        self._config, self._frames, self._positions = config, num_frames, positions

    def _rotation(self, frames: list[int]) -> tuple[Tensor, Tensor]:
        rows, columns = self._config.grid
        t, y, x = torch.meshgrid(
            torch.tensor(frames), torch.arange(rows), torch.arange(columns), indexing="ij"
        )
        parts = [
            get_1d_rotary_pos_embed(dims, axis.flatten(), use_real=True, freqs_dtype=torch.float64)
            for dims, axis in zip(self._config.rope_dims, (t, y, x), strict=True)
        ]
        cos, sin = (torch.cat(halves, 1)[:, None] for halves in zip(*parts, strict=True))
        return cos, sin

    def _turn(self, x: Tensor, frames: list[int]) -> Tensor:
        cos, sin = self._rotation(frames)
        swapped = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * cos + swapped * sin

    def __call__(self, attn, hidden, context=None, attention_mask=None, rotary_emb=None):
        n, heads = self._config.num_patches, (attn.heads, -1)
        q = attn.norm_q(attn.to_q(hidden))[0].unflatten(-1, heads)
        k = attn.norm_k(attn.to_k(hidden))[0].unflatten(-1, heads)
        v = attn.to_v(hidden)[0].unflatten(-1, heads)
        seen = []
        for frame, position in enumerate(self._positions):
            past = [f for f in range(1, frame + 1) if frame - f < self._config.window]
            shown = [0, *past]
            rows = torch.cat([torch.arange(f * n, (f + 1) * n) for f in shown])
            at = [0, *(position - (frame - f) for f in past)]
            query = self._turn(q[frame * n : (frame + 1) * n], [position]).transpose(0, 1)
            key = self._turn(k[rows], at).transpose(0, 1)
            seen.append(
                F.scaled_dot_product_attention(query, key, v[rows].transpose(0, 1)).transpose(0, 1)
            )
        return attn.to_out[0](torch.cat(seen).flatten(1)[None])


def frame_mask(config: AvatarDiTConfig, num_frames: int) -> Tensor:
    frame = torch.arange(num_frames).repeat_interleave(config.num_patches)
    query, key = frame[:, None], frame[None]
    return (key <= query) & ((key == 0) | (query - key < config.window))


class Oracle:
    """Denoises with their transformer alone: every prediction is a forward over all frames."""

    def __init__(
        self, model: torch.nn.Module, config: AvatarDiTConfig, photo: Tensor, text: Tensor
    ):
        self._model, self._config = model, config
        self._frames, self._times = [photo], [0.0]
        self._text = text
        self._positions = [0]

    def predict(self, noisy: Tensor, sigma: float, resets: bool) -> Tensor:
        frames, n = [*self._frames, noisy], self._config.num_patches
        times = torch.tensor([*self._times, 1000 * sigma]).repeat_interleave(n)
        for block in self._model.blocks:
            block.attn1.set_processor(
                Rerotated(self._config, len(frames), self._positions)
                if resets
                else Causal(frame_mask(self._config, len(frames)))
            )
        with torch.no_grad():
            (out,) = self._model(
                torch.stack(frames, 1)[None], times[None], self._text[None], return_dict=False
            )
        return out[0, :, -1]

    def chunk(self, chunk: int, seed: int, position: int, resets: bool) -> Tensor:
        config = self._config
        shape = (config.latent_channels, *config.latent_size)
        self._positions.append(position)
        noisy = chunk_noise(seed, chunk, 0, shape)
        for index, sigma in enumerate(config.sigmas):
            x0 = noisy - sigma * self.predict(noisy, sigma, resets)
            if index + 1 < len(config.sigmas):
                after = config.sigmas[index + 1]
                fresh = chunk_noise(seed, chunk, index + 1, shape)
                noisy = (1 - after) * x0 + after * fresh
        self._frames.append(noisy)
        self._times.append(1000 * config.sigmas[-1])
        return x0


def test_one_block(pair: Pair) -> None:
    config = pair.ours.config
    model = DiT(config, LocalComm())
    fill_rank(dict(model.named_parameters()), pair.ours)
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(config.num_patches, config.hidden, generator=draw)
    modulation = torch.randn(6, config.hidden, generator=draw)
    text = torch.randn(config.num_text_tokens, config.hidden, generator=draw)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (y.transpose(0, 1) for y in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(0, 1)

    layer, block = model.layers[0], pair.theirs.blocks[0]
    ours = layer(x, modulation, RopeTable(config).chunk(0), attend, layer.cross.read(text))
    block.attn1.set_processor(WanAttnProcessor())
    rotary = pair.theirs.rope(torch.zeros(1, 1, 1, *config.latent_size))
    with torch.no_grad():
        theirs = block(x[None], text[None], modulation[None], rotary)[0]
    assert (ours - theirs).abs().max() / theirs.abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("window", "spare", "interval"),
    [
        pytest.param(13, 0, 42, id="nothing leaves the window"),
        pytest.param(4, 2, 42, id="the ring wraps"),
        pytest.param(4, 2, 5, id="positions reset twice"),
    ],
)
def test_twelve_chunks(pair: Pair, start, window: int, spare: int, interval: int) -> None:
    config = replace(pair.ours.config, window=window, spare=spare, reset_interval=interval)
    weights = replace(pair.ours, config=config)
    run = start(config, weights=weights)
    oracle = Oracle(pair.theirs, config, run.photo.latent, run.photo.text)
    worst = 0.0
    for chunk in range(FRAMES):
        ours = run.chunk()
        theirs = oracle.chunk(chunk, 5, run.ring.last_position, interval < FRAMES)
        worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max()))
    assert run.ring.last_position == (2 if interval < FRAMES else FRAMES)
    assert worst <= 1e-4, worst


def test_twelve_chunks_on_four_ranks(pair: Pair, start) -> None:
    """The norm across heads, summed over ranks, is still theirs."""
    run = start(pair.ours.config, 4, weights=pair.ours)
    oracle = Oracle(pair.theirs, pair.ours.config, run.photo.latent, run.photo.text)
    for chunk in range(4):
        ours, theirs = run.chunk(), oracle.chunk(chunk, 5, chunk + 1, False)
        assert (ours - theirs).abs().max() / theirs.abs().max() <= 1e-4
