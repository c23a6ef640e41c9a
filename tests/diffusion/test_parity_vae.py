"""The video autoencoder against diffusers' `AutoencoderKLWan`, random weights, reduced width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from diffusers.models.autoencoders.autoencoder_kl_wan import patchify  # noqa: E402

from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig  # noqa: E402
from talking_avatar.engine.diffusion.decoder.networks import (  # noqa: E402
    DecoderNetwork,
    EncoderNetwork,
)
from talking_avatar.engine.diffusion.weights.wan_keys import vae_name  # noqa: E402

TOLERANCE = 1e-5
"""Relative, FP32: the same sums in another order."""


@dataclass
class Pair:
    config: WanCodecConfig
    theirs: Any
    encoder: EncoderNetwork
    decoder: DecoderNetwork


CONFIGS = {
    "as published, narrow": WanCodecConfig(latent_channels=6, encoder_width=8, decoder_width=12),
    "three stages, pixels not patched": WanCodecConfig(
        latent_channels=5,
        encoder_width=6,
        decoder_width=4,
        multipliers=(1, 2, 2),
        num_residuals=1,
        halves_time=(True, False),
        patch=1,
    ),
}


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def pair(request: pytest.FixtureRequest) -> Pair:
    torch.manual_seed(3)
    config: WanCodecConfig = request.param
    theirs = diffusers.AutoencoderKLWan(
        base_dim=config.encoder_width,
        decoder_base_dim=config.decoder_width,
        z_dim=config.latent_channels,
        dim_mult=list(config.multipliers),
        num_res_blocks=config.num_residuals,
        temperal_downsample=list(config.halves_time),
        is_residual=True,
        in_channels=config.pixel_channels,
        out_channels=config.pixel_channels,
        patch_size=None if config.patch == 1 else config.patch,
        scale_factor_spatial=config.spatial_stride,
        latents_mean=[0.0] * config.latent_channels,
        latents_std=[1.0] * config.latent_channels,
    ).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("gamma"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    ours = {"encoder": EncoderNetwork(config), "decoder": DecoderNetwork(config)}
    for half, network in ours.items():
        expected = network.state_dict()
        mapped = {vae_name(k): v for k, v in theirs.state_dict().items()}
        network.load_state_dict(
            {
                name: mapped[f"{half}.{name}"].reshape(tensor.shape)
                for name, tensor in expected.items()
            }
        )
        assert {n for n in mapped if n.startswith(half)} == {f"{half}.{n}" for n in expected}
    return Pair(config, theirs, ours["encoder"].eval(), ours["decoder"].eval())  # type: ignore[arg-type]


def relative_error(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@torch.no_grad()
def test_streaming_decode_equals_theirs(pair: Pair) -> None:
    config = pair.config
    latents = torch.randn(1, config.latent_channels, 4, 3, 2)
    raw: list[Any] = []  # before their final clip, which would hide errors beyond one
    hook = pair.theirs.decoder.register_forward_hook(lambda _m, _a, out: raw.append(out))
    pair.theirs.decode(latents)
    hook.remove()
    side = config.spatial_stride // config.patch
    state = None
    for index, latent in enumerate(latents.split(1, dim=2)):
        pixels, state = pair.decoder(latent, state)
        frames = 1 if index == 0 else config.frames_per_latent
        assert pixels.shape == (1, config.pixel_channels, frames, 3 * side, 2 * side)
        assert relative_error(pixels, raw[index]) <= TOLERANCE


@torch.no_grad()
def test_streaming_encode_equals_theirs(pair: Pair) -> None:
    stride = pair.config.spatial_stride
    video = torch.rand(1, 3, 13, 3 * stride, 2 * stride) * 2 - 1
    theirs = pair.theirs.encode(video).latent_dist.mode()
    patches = patchify(video, pair.config.patch)
    state = None
    chunks = []
    for frames in patches.split([1, 4, 4, 4], dim=2):
        mean, state = pair.encoder(frames, state)
        chunks.append(mean)
    assert relative_error(torch.cat(chunks, dim=2), theirs) <= TOLERANCE
