"""One program for 64 keys of one head; both ranges are counted as one list."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..write_qkv.kernel import rotated, scaled_rows

KEYS = 64


@triton.jit
def _rotate_slots(
    k, k_scale, cos, sin, ranges, num_pairs, num_slots,
    DIM: tl.constexpr, KEYS: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start_a, stop_a = tl.load(ranges), tl.load(ranges + 1)
    start_b, stop_b = tl.load(ranges + 2), tl.load(ranges + 3)
    length_a = stop_a - start_a
    total = length_a + stop_b - start_b
    first = tl.program_id(0) * KEYS
    if first < total:
        order = first + tl.arange(0, KEYS)
        slots = tl.where(order < length_a, start_a + order, start_b + order - length_a)
        valid = order < total
        keys = head.to(tl.int64) * num_slots + slots
        where = k + keys[:, None] * DIM + tl.arange(0, DIM)[None, :]
        x = tl.load(where, mask=valid[:, None], other=0.0).to(tl.float32)
        if IS_FP8:
            x *= tl.load(k_scale + keys, mask=valid, other=0.0)[:, None]
        pairs = tl.arange(0, DIM // 2)
        cosines = tl.load(cos + pairs, mask=pairs < num_pairs, other=1.0)
        sines = tl.load(sin + pairs, mask=pairs < num_pairs, other=0.0)
        x = rotated(x, cosines[None, :], sines[None, :], KEYS, DIM)
        if IS_FP8:
            x, scale = scaled_rows(x)
            tl.store(k_scale + keys, scale, mask=valid)
        tl.store(where, x.to(k.dtype.element_ty), mask=valid[:, None])


def launch(k: Tensor, k_scale: Tensor | None, cos: Tensor, sin: Tensor, ranges: Tensor) -> None:
    """Launch on the current stream, for any ranges: the grid covers all slots."""
    heads, num_slots, dim = k.shape
    _rotate_slots[(triton.cdiv(num_slots, KEYS), heads)](
        k, k_scale, cos, sin, ranges, cos.shape[0], num_slots,
        DIM=dim, KEYS=KEYS, IS_FP8=k_scale is not None, num_warps=4,
    )  # fmt: skip
