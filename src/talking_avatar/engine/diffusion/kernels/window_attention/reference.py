"""What `window_attention` computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import dequantize, quantize
from ..write_qkv import QueryKeyValue


def attend(qkv: QueryKeyValue, ranges: Tensor) -> Tensor:
    """Return softmax(q k / sqrt(dim)) v in FP32 (FP64 stays), (M, heads * dim)."""
    slots = torch.cat([torch.arange(a, b) for a, b in ranges.tolist()]).to(qkv.q.device)
    q, k, v = (x if x.dtype == torch.float64 else x.float() for x in (qkv.q, qkv.k, qkv.v))
    k, v = k[:, slots], v[:, :, slots]
    if qkv.q_scale is not None and qkv.k_scale is not None and qkv.v_scale is not None:
        q = q * qkv.q_scale
        k = dequantize(k, qkv.k_scale[:, slots])
        v = dequantize(v, qkv.v_scale[:, slots], dim=1)
    logits = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    tokens: Tensor = logits.softmax(-1) @ v.transpose(1, 2)
    return tokens.transpose(0, 1).flatten(1)


def reference_window_attention(qkv: QueryKeyValue, ranges: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return tokens (M, heads * dim) in the queries' format, and scales (M,) for FP8."""
    tokens = attend(qkv, ranges)
    return (tokens.to(qkv.q.dtype), None) if qkv.q_scale is None else quantize(tokens)
