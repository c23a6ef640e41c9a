"""Layer norm, AdaLN modulation and per-token FP8 in one pass over the row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import FP8, runs_triton
from .reference import reference_modulate_norm_quantize

__all__ = ["modulate_norm_quantize", "reference_modulate_norm_quantize"]


def modulate_norm_quantize(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    *,
    eps: float = 1e-6,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``layer_norm(x) * (1 + scale) + shift`` in FP8 with one scale a token.

    Args:
        x: Residual stream (M, H), FP32 or BF16, contiguous; H at most 16,384.
        shift: FP32 (H,).
        scale: FP32 (H,).
        eps: Added to the variance.
        out: FP8 (M, H) and FP32 (M,) to write into.

    Returns:
        FP8 (M, H) and its FP32 scales (M,).

    Raises:
        ValueError: On shapes that don't fit.
    """
    width = x.shape[1]
    if shift.shape != (width,) or scale.shape != (width,):
        raise ValueError(
            f"shift {tuple(shift.shape)} and scale {tuple(scale.shape)} must be ({width},), "
            "the width of x"
        )
    if not runs_triton(x):
        values, scales = reference_modulate_norm_quantize(x, shift, scale, eps)
        if out is None:
            return values, scales
        out[0].copy_(values)
        out[1].copy_(scales)
        return out
    from .kernel import launch

    if out is None:
        out = torch.empty_like(x, dtype=FP8), x.new_empty(x.shape[0], dtype=torch.float32)
    launch(x, shift, scale, eps, *out)
    return out
