"""The video codec with its weights.

Takes: `Weights`, a device and a type. Gives: the two halves behind the decoder's seam.
Never: loads one half for the sake of the other.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from talking_avatar.engine.diffusion.decoder.codec import (
    WanPhotoEncoder,
    WanVideoDecoder,
    channels_last,
)
from talking_avatar.engine.diffusion.decoder.networks import DecoderNetwork, EncoderNetwork
from talking_avatar.engine.diffusion.weights.checkpoint import Weights
from talking_avatar.engine.diffusion.weights.rank_part import (
    BLOCK_BYTES,
    Region,
    copy_region,
)

_Half = TypeVar("_Half", DecoderNetwork, EncoderNetwork)


def load_video_decoder(
    weights: Weights, *, device: str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> WanVideoDecoder:
    """Build the decoder of latents.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    network = _load(DecoderNetwork, weights, "decoder", device, dtype)
    return WanVideoDecoder(weights.config.codec, network)


def load_photo_encoder(
    weights: Weights, *, device: str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> WanPhotoEncoder:
    """Build the encoder of photos.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    network = _load(EncoderNetwork, weights, "encoder", device, dtype)
    return WanPhotoEncoder(weights.config.codec, network)


def _load(
    kind: type[_Half],
    weights: Weights,
    half: str,
    device: str,
    dtype: torch.dtype,
) -> _Half:
    with torch.device("meta"):
        network = kind(weights.config.codec)
    network = network.to(dtype).to_empty(device=device)
    with torch.no_grad():
        for name, target in network.state_dict().items():
            copy_region(target, weights.codec, f"{half}.{name}", Region(), BLOCK_BYTES)
    if torch.device(device).type == "cuda":
        channels_last(network)
    return network.requires_grad_(False).eval()
