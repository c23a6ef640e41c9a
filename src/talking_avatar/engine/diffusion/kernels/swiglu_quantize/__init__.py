"""SwiGLU of a raw gate-and-up product, then per-token FP8.

A kernel of its own rather than the product's epilogue: the scale needs the largest value of a
whole row, which 30 to 120 column tiles share. Read right after it was written, the product
comes from L2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import FP8, runs_triton
from .reference import reference_swiglu_quantize

__all__ = ["reference_swiglu_quantize", "swiglu_quantize"]


def swiglu_quantize(
    raw: Tensor,
    row_scale: Tensor,
    col_scale: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``silu(gate) * up`` in FP8 with one scale a token.

    Args:
        raw: BF16 (M, 2F), gate columns first, without scales.
        row_scale: FP32 (M,), the scales of the activations that made ``raw``.
        col_scale: FP32 (2F,), the scales of the weights that made ``raw``.
        out: FP8 (M, F) and FP32 (M,) to write into.

    Returns:
        FP8 (M, F) and its FP32 scales (M,).

    Raises:
        ValueError: On shapes that don't fit.
    """
    rows, twice = raw.shape
    if row_scale.shape != (rows,) or col_scale.shape != (twice,) or twice % 2:
        raise ValueError(
            f"raw {tuple(raw.shape)} needs an even width, row_scale ({rows},) and col_scale "
            f"({twice},), not {tuple(row_scale.shape)} and {tuple(col_scale.shape)}"
        )
    if not runs_triton(raw):
        values, scales = reference_swiglu_quantize(raw, row_scale, col_scale)
        if out is None:
            return values, scales
        out[0].copy_(values)
        out[1].copy_(scales)
        return out
    from .kernel import launch

    if out is None:
        out = raw.new_empty(rows, twice // 2, dtype=FP8), torch.empty_like(row_scale)
    launch(raw, row_scale, col_scale, *out)
    return out
