"""Bytes of a picture to the patched values that the networks see, and back.

Legend of shapes: T frames, H, W pixels, h, w patches, p pixels a side of a patch. In the channels
of a patch the color changes slowest, then the column, then the row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_patches(frames_THWc: Tensor, patch: int, dtype: torch.dtype) -> Tensor:
    """Scale uint8 RGB (T, H, W, 3) to [-1, 1] and fold patches: (1, 3 p p, T, h, w)."""
    frames, height, width, _ = frames_THWc.shape
    folded = frames_THWc.reshape(frames, height // patch, patch, width // patch, patch, 3)
    patches = folded.permute(5, 4, 2, 0, 1, 3).flatten(0, 2).unsqueeze(0)
    return (patches.float() / 127.5 - 1).to(dtype)


def to_bytes(patches_BCThw: Tensor, patch: int) -> Tensor:
    """Unfold patches (1, 3 p p, T, h, w) and round [-1, 1] to uint8 RGB (T, H, W, 3).

    Values outside are clipped; NaN becomes 0.
    """
    rounded = patches_BCThw[0].float().add(1).mul(127.5).nan_to_num(0.0).clamp(0, 255).round()
    values = torch.unflatten(rounded.to(torch.uint8), 0, (3, patch, patch))
    frames, height, width = values.shape[3:]
    picture = values.permute(3, 4, 2, 5, 1, 0)
    return picture.reshape(frames, height * patch, width * patch, 3)
