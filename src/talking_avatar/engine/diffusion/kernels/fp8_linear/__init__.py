"""FP8 matrix products with one scale per token and one per output channel."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ..formats import runs_triton
from .reference import reference_fp8_matmul

__all__ = ["fp8_linear", "fp8_matmul", "reference_fp8_matmul"]


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def fp8_matmul(x: Tensor, w: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return ``x @ w.T`` in BF16 without scales: the next op folds them in.

    The library's product with scale 1 is its fastest path, and an epilogue that every consumer
    here has anyway applies both scales. See docs/design/kernels.md for the measurement.

    Args:
        x: FP8 (M, K), row-major.
        w: FP8 (N, K), row-major; N and K multiples of 16 on a GPU.
        out: BF16 (M, N) to write into.

    Returns:
        BF16 (M, N).

    Raises:
        ValueError: When K differs.
    """
    if x.shape[1] != w.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and w {tuple(w.shape)} must share their last size")
    if not runs_triton(x):
        product = reference_fp8_matmul(x, w)
        return product if out is None else out.copy_(product)
    one = _one(x.device)
    if out is None:
        out = torch.empty(x.shape[0], w.shape[0], dtype=torch.bfloat16, device=x.device)
    torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True, out=out)
    return out


def fp8_linear(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Return ``(x * x_scale) @ (w * w_scale).T`` in BF16.

    Args:
        x: FP8 (M, K).
        x_scale: FP32 (M,).
        w: FP8 (N, K).
        w_scale: FP32 (N,).
        out: BF16 (M, N) to write into.

    Returns:
        BF16 (M, N).
    """
    if not runs_triton(x):
        scaled = reference_fp8_matmul(x, w).float() * x_scale[:, None] * w_scale
        return scaled.to(torch.bfloat16) if out is None else out.copy_(scaled)
    if out is None:
        out = torch.empty(x.shape[0], w.shape[0], dtype=torch.bfloat16, device=x.device)
    scales = x_scale[:, None], w_scale[None, :]
    torch._scaled_mm(x, w.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True, out=out)
    return out
