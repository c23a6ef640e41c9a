"""Attention of one chunk's tokens over the ring: dense, split over keys, order-free.

Softmax does not care in which order keys come, so the ring is never unrolled: the kernel walks
the sink and at most two ranges of the ring, whose bounds it reads from device memory. One
captured graph therefore serves every offset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import FP8, runs_triton
from ..write_qkv import QueryKeyValue
from .reference import reference_window_attention
from .workspace import AttentionWorkspace

__all__ = ["AttentionWorkspace", "reference_window_attention", "window_attention"]


def window_attention(
    qkv: QueryKeyValue,
    ranges: Tensor,
    *,
    out: tuple[Tensor, Tensor | None] | None = None,
    workspace: AttentionWorkspace | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend from every query to every slot of the ranges.

    FP8: the keys' scales fold into the logits, the values' scales into the probabilities before
    these are rounded to FP8; the output is rounded to FP8 with one scale a token, ready for the
    output projection. BF16: no scales, output in BF16.

    Slots outside the ranges have no influence; the last block of a range may touch up to one
    block of its neighbors, which therefore must hold finite numbers.

    Args:
        qkv: Queries (heads, M, dim), ring k (heads, slots, dim) and v (heads, dim, slots), with
            scales for FP8; dim 64 or 128.
        ranges: int32 (3, 2) on the device, ``[start, stop)`` each, at least one not empty.
        out: (M, heads * dim) FP8 and (M,) FP32, or (M, heads * dim) BF16 and None.
        workspace: Partial results, made once per shape; made anew when None.

    Returns:
        The tokens (M, heads * dim) and their scales (M,), None without FP8.

    Raises:
        ValueError: On shapes that don't fit.
    """
    if ranges.shape != (3, 2):
        raise ValueError(f"ranges must be (3, 2): sink and two of the ring; {tuple(ranges.shape)}")
    if not runs_triton(qkv.q):
        values, scales = reference_window_attention(qkv, ranges)
        if out is None:
            return values, scales
        out[0].copy_(values)
        if out[1] is not None and scales is not None:
            out[1].copy_(scales)
        return out
    from .kernel import launch

    heads, rows, dim = qkv.q.shape
    if out is None:
        is_fp8 = qkv.q.dtype == FP8
        out = (
            torch.empty(rows, heads * dim, dtype=qkv.q.dtype, device=qkv.q.device),
            torch.empty(rows, device=qkv.q.device) if is_fp8 else None,
        )
    launch(qkv, ranges, out, workspace or AttentionWorkspace.for_queries(qkv.q))
    return out
