"""Latents to pictures, and the photo to its latent. The seam is `base`."""

from __future__ import annotations

from talking_avatar.engine.diffusion.decoder.base import (
    DecoderState,
    PhotoEncoder,
    PhotoView,
    VideoDecoder,
)

__all__ = ["DecoderState", "PhotoEncoder", "PhotoView", "VideoDecoder"]
