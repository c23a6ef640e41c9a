"""What `modulate_norm_quantize` computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import quantize


def normalize_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return ``layer_norm(x) * (1 + scale) + shift``, (M, H), FP32 (FP64 stays FP64)."""
    x = x if x.dtype == torch.float64 else x.float()
    centered = x - x.mean(-1, keepdim=True)
    rstd = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    return centered * rstd * (1 + scale) + shift


def reference_modulate_norm_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return FP8 (M, H) and its scales (M,)."""
    return quantize(normalize_modulate(x, shift, scale, eps))
