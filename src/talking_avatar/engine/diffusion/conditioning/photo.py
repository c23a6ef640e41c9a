"""The photo as the DiT and the decoder see it.

Takes: a framed photo and the codec's encoder. Gives: a `DiffusionAvatar`.
Never: finds a face or frames; the photo room does, and hands over RGB of the model's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talking_avatar.engine.base import PhotoWarning
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.decoder.base import PhotoEncoder, PhotoView


@dataclass(frozen=True, slots=True, eq=False)
class PhotoCondition:
    """What the sink is made of; FP32 on the CPU.

    Attributes:
        latent: [channels, h, w], normalized as the DiT wants it.
        features: [photo_channels, rows, columns], where the model has them.
        text: [num_text_tokens, text_channels], where the model has text.
    """

    latent: Tensor
    features: Tensor | None = None
    text: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DiffusionAvatar:
    """A prepared photo. Feeds any number of streams of its engine.

    Attributes:
        condition: For the DiT's sink.
        view: For the decoder.
        warnings: What the caller should know of the photo.
    """

    condition: PhotoCondition
    view: PhotoView
    warnings: tuple[PhotoWarning, ...] = ()


def encode_avatar(
    image_HWc: npt.NDArray[np.uint8],
    encoder: PhotoEncoder,
    config: AvatarDiTConfig,
    warnings: tuple[PhotoWarning, ...] = (),
) -> DiffusionAvatar:
    """Make an avatar of a framed photo.

    Args:
        image_HWc: RGB at the model's size.
        encoder: Of the model's codec.
        config: The model.
        warnings: From the photo room.
    """
    image = torch.from_numpy(np.ascontiguousarray(image_HWc))
    latent = encoder.encode_photo(image).float()
    text = None
    if config.text_channels:
        # No text encoder here: the text says nothing. A caller with one replaces `condition`.
        text = torch.zeros(config.num_text_tokens, config.text_channels)
    return DiffusionAvatar(
        PhotoCondition(latent.cpu(), None, text), PhotoView(image, latent), warnings
    )
