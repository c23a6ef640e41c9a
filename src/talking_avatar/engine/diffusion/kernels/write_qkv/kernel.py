"""One program for 32 tokens of one head of q, k or v; norm and scale stay inside a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..formats import overlaps_launches

if TYPE_CHECKING:
    from . import QueryKeyValue

TOKENS = 32


@triton.jit
def rotated(x, cos, sin, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Rotate interleaved pairs of (ROWS, DIM) by (ROWS, DIM / 2)."""
    even, odd = tl.split(tl.reshape(x, (ROWS, DIM // 2, 2)))
    pairs = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    return tl.reshape(pairs, (ROWS, DIM))


@triton.jit
def scaled_rows(x):
    """Return (ROWS, DIM) divided by its rows' scales, and the scales."""
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-12) / 448.0
    return x * (1.0 / scale)[:, None], scale


@triton.jit
def _write_qkv(
    raw, row_scale, col_scale, q_weight, k_weight, cos, sin, slot_start,
    q, q_scale, k, k_scale, v, v_scale,
    num_rows, num_heads, num_slots, eps,
    DIM: tl.constexpr, ROWS: tl.constexpr, IS_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    part = tl.program_id(2)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    valid = rows < num_rows
    mask = valid[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    first_col = (part * num_heads + head) * DIM
    width = 3 * num_heads * DIM
    x = tl.load(raw + rows[:, None] * width + first_col + dims[None, :], mask=mask, other=0.0)
    x = x.to(tl.float32) * tl.load(row_scale + rows, mask=valid, other=0.0)[:, None]
    x *= tl.load(col_scale + first_col + dims)[None, :]
    slots = tl.load(slot_start) + rows
    if part == 2:
        if IS_FP8:
            x, scale = scaled_rows(x)
            tl.store(v_scale + head * num_slots + slots, scale, mask=valid)
        # Slots run along memory in V: a row of DIM values becomes a column.
        where = v + (head * DIM + dims[None, :]).to(tl.int64) * num_slots + slots[:, None]
        tl.store(where, x.to(v.dtype.element_ty), mask=mask)
    else:
        weight = tl.load((q_weight if part == 0 else k_weight) + dims)
        x *= tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        x *= weight[None, :]
        pairs = tl.arange(0, DIM // 2)
        angle = rows[:, None] * (DIM // 2) + pairs[None, :]
        cosines = tl.load(cos + angle, mask=mask, other=1.0)
        sines = tl.load(sin + angle, mask=mask, other=0.0)
        x = rotated(x, cosines, sines, ROWS, DIM)
        if part == 0:
            if IS_FP8:
                x *= 1.0 / tl.load(q_scale)
            where = q + (head * num_rows + rows[:, None]) * DIM + dims[None, :]
            tl.store(where, x.to(q.dtype.element_ty), mask=mask)
        else:
            if IS_FP8:
                x, scale = scaled_rows(x)
                tl.store(k_scale + head * num_slots + slots, scale, mask=valid)
            where = k + (head * num_slots + slots[:, None]).to(tl.int64) * DIM + dims[None, :]
            tl.store(where, x.to(k.dtype.element_ty), mask=mask)


def launch(
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
    """Launch on the current stream."""
    heads, rows, dim = out.q.shape
    num_slots = out.k.shape[1]
    pdl = overlaps_launches(raw)
    _write_qkv[(triton.cdiv(rows, TOKENS), heads, 3)](
        raw, row_scale, col_scale, q_weight, k_weight, cos, sin, slot_start,
        out.q, out.q_scale, out.k, out.k_scale, out.v, out.v_scale,
        rows, heads, num_slots, eps,
        DIM=dim, ROWS=TOKENS, IS_FP8=out.k_scale is not None, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
