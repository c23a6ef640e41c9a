"""What `write_qkv` computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..formats import FP8_MAX, quantize

if TYPE_CHECKING:
    from . import QueryKeyValue


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate interleaved pairs: x (..., 2P), cos and sin broadcastable to (..., P)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def reference_write_qkv(
    raw: Tensor,
    row_scale: Tensor,
    col_scale: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_start: Tensor,
    out: QueryKeyValue,
    eps: float,
) -> None:
    """Write queries, and one range of slots of the ring."""
    heads, rows, dim = out.q.shape
    values = raw.float() * row_scale[:, None] * col_scale
    q, k, v = values.view(rows, 3, heads, dim).permute(1, 2, 0, 3)
    q = rotate(rms_norm(q, q_weight, eps), cos, sin)
    k = rotate(rms_norm(k, k_weight, eps), cos, sin)
    start = int(slot_start)
    slots = slice(start, start + rows)
    if out.q_scale is None or out.k_scale is None or out.v_scale is None:
        out.q.copy_(q)
        out.k[:, slots] = k.to(out.k.dtype)
        out.v[:, :, slots] = v.transpose(1, 2).to(out.v.dtype)
        return
    k8, k_scale = quantize(k)
    v8, v_scale = quantize(v)
    out.q.copy_((q / out.q_scale).clamp(-FP8_MAX, FP8_MAX))
    # PyTorch's CPU cannot copy between slices of FP8 in every version: bytes always can.
    out.k.view(torch.uint8)[:, slots] = k8.view(torch.uint8)
    out.k_scale[:, slots] = k_scale
    out.v.view(torch.uint8)[:, :, slots] = v8.view(torch.uint8).transpose(1, 2)
    out.v_scale[:, slots] = v_scale
