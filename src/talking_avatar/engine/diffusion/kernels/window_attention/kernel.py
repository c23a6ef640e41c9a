"""Two launches: every program walks its share of key blocks; then the shares are combined.

Exponents are base 2. With FP8 the value scale joins the exponent: u = q k + log2(v_scale), so
that the probabilities, which carry the value scales, use FP8's range whatever these are; their
sum divides the scale out again.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..write_qkv import QueryKeyValue
from .workspace import BLOCK_M, AttentionWorkspace

LOG2_E = 1.4426950408889634
BLOCK_N = 128


@triton.jit
def _num_blocks(start, stop, BLOCK_N: tl.constexpr):
    return tl.maximum(stop - start + BLOCK_N - 1, 0) // BLOCK_N


@triton.jit
def _attend_share(
    q_rows, k_rows, v_rows, q_scale, k_scale, v_scale, ranges, partial, lse,
    num_rows, num_slots, num_tiles, tiles_per_head, logit_scale,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_PIECES: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    start_0, stop_0 = tl.load(ranges), tl.load(ranges + 1)
    start_1, stop_1 = tl.load(ranges + 2), tl.load(ranges + 3)
    start_2, stop_2 = tl.load(ranges + 4), tl.load(ranges + 5)
    until_0 = _num_blocks(start_0, stop_0, BLOCK_N)
    until_1 = until_0 + _num_blocks(start_1, stop_1, BLOCK_N)
    num_blocks = until_1 + _num_blocks(start_2, stop_2, BLOCK_N)
    program = tl.program_id(0)
    total = num_tiles * num_blocks
    unit = program * total // tl.num_programs(0)
    last_unit = (program + 1) * total // tl.num_programs(0)
    piece = program * NUM_PIECES
    columns = tl.arange(0, BLOCK_N)
    rows = tl.arange(0, BLOCK_M)
    while unit < last_unit:
        tile = unit // num_blocks
        head = tile // tiles_per_head
        first_row = (tile % tiles_per_head) * BLOCK_M
        first_block = unit - tile * num_blocks
        last_block = tl.minimum(num_blocks, first_block + last_unit - unit)
        unit += last_block - first_block
        q = q_rows.load([head * num_rows + first_row, 0])
        row_factor = tl.full([BLOCK_M], logit_scale, tl.float32)
        if IS_FP8:
            row_mask = first_row + rows < num_rows
            row_factor *= tl.load(
                q_scale + head * num_rows + first_row + rows, mask=row_mask, other=0.0
            )
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        norm = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, DIM], tl.float32)
        for block in tl.range(first_block, last_block):
            start = start_0 + block * BLOCK_N
            stop = stop_0
            if block >= until_0:
                start = start_1 + (block - until_0) * BLOCK_N
                stop = stop_1
            if block >= until_1:
                start = start_2 + (block - until_1) * BLOCK_N
                stop = stop_2
            slots = start + columns
            valid = slots < stop
            k = k_rows.load([head * num_slots + start, 0])
            logits = tl.dot(q, k.T)
            if IS_FP8:
                scales = head * num_slots + slots
                key_scale = tl.load(k_scale + scales, mask=valid, other=0.0)
                value_scale = tl.load(v_scale + scales, mask=valid, other=0.0)
                bias = tl.log2(value_scale)
                undo = tl.where(valid, 1.0 / value_scale, 0.0)
                u = (logits * key_scale[None, :]) * row_factor[:, None] + bias[None, :]
            else:
                bias = tl.where(valid, 0.0, float("-inf"))
                u = logits * logit_scale + bias[None, :]
            new_largest = tl.maximum(largest, tl.max(u, 1))
            shrink = tl.exp2(largest - new_largest)
            largest = new_largest
            if IS_FP8:
                # 2^8 is the most that keeps the largest probability inside E4M3's 448.
                p = tl.exp2(u - (new_largest - 8.0)[:, None])
                norm = norm * shrink + tl.sum(p * undo[None, :], 1)
            else:
                p = tl.exp2(u - new_largest[:, None])
                norm = norm * shrink + tl.sum(p, 1)
            acc *= shrink[:, None]
            v = v_rows.load([head * DIM, start])
            acc = tl.dot(p.to(v_rows.dtype), v.T, acc)
        offset = 8.0 if IS_FP8 else 0.0
        where = (piece * BLOCK_M + rows)[:, None] * DIM + tl.arange(0, DIM)[None, :]
        tl.store(partial + where, (acc / norm[:, None]).to(tl.bfloat16))
        tl.store(lse + piece * BLOCK_M + rows, largest + tl.log2(norm) - offset)
        piece += 1


@triton.jit
def _combine_shares(
    partial, lse, ranges, out, out_scale,
    num_tiles, tiles_per_head, num_programs,
    HEADS: tl.constexpr, HEADS_POW2: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, NUM_PIECES: tl.constexpr, NUM_PARTS: tl.constexpr,
    PARTS_POW2: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    num_blocks = _num_blocks(tl.load(ranges), tl.load(ranges + 1), BLOCK_N)
    num_blocks += _num_blocks(tl.load(ranges + 2), tl.load(ranges + 3), BLOCK_N)
    num_blocks += _num_blocks(tl.load(ranges + 4), tl.load(ranges + 5), BLOCK_N)
    total = num_tiles * num_blocks
    heads = tl.arange(0, HEADS_POW2)
    tile = heads * tiles_per_head + row // BLOCK_M
    unit = tile * num_blocks
    # The program that holds unit u is the largest g with g * total // num_programs <= u.
    first = ((unit + 1) * num_programs - 1) // total
    last = ((unit + num_blocks) * num_programs - 1) // total
    parts = tl.arange(0, PARTS_POW2)
    program = first[:, None] + parts[None, :]
    exists = (program <= last[:, None]) & (heads < HEADS)[:, None]
    piece = tile[:, None] - (program * total // num_programs) // num_blocks
    where = ((program * NUM_PIECES + piece) * BLOCK_M + row % BLOCK_M).to(tl.int32)
    part_lse = tl.load(lse + where, mask=exists, other=float("-inf"))
    largest = tl.max(part_lse, 1)
    weight = tl.where(exists, tl.exp2(part_lse - largest[:, None]), 0.0)
    weight = weight / tl.maximum(tl.sum(weight, 1), 1e-30)[:, None]
    dims = tl.arange(0, DIM)
    acc = tl.zeros([HEADS_POW2, DIM], tl.float32)
    for part in tl.static_range(NUM_PARTS):
        is_part = (parts == part)[None, :]
        source = tl.sum(tl.where(is_part & exists, where, 0), 1)
        share = tl.sum(tl.where(is_part, weight, 0.0), 1)
        mask = (first + part <= last) & (heads < HEADS)
        values = tl.load(
            partial + source[:, None] * DIM + dims[None, :], mask=mask[:, None], other=0.0
        )
        acc += values.to(tl.float32) * share[:, None]
    if IS_FP8:
        scale = tl.maximum(tl.max(tl.max(tl.abs(acc), 1), 0), 1e-12) / 448.0
        acc *= 1.0 / scale
        tl.store(out_scale + row, scale)
    target = out + (row * HEADS + heads[:, None]) * DIM + dims[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(heads < HEADS)[:, None])


def launch(
    qkv: QueryKeyValue,
    ranges: Tensor,
    out: tuple[Tensor, Tensor | None],
    workspace: AttentionWorkspace,
    block_n: int = BLOCK_N,
    num_warps: int = 8,
    num_stages: int = 3,
) -> None:
    """Launch both on the current stream."""
    heads, rows, dim = qkv.q.shape
    num_slots = qkv.k.shape[1]
    tiles_per_head = triton.cdiv(rows, BLOCK_M)
    is_fp8 = qkv.k_scale is not None
    _attend_share[(workspace.num_programs,)](
        TensorDescriptor.from_tensor(qkv.q.view(heads * rows, dim), [BLOCK_M, dim]),
        TensorDescriptor.from_tensor(qkv.k.view(heads * num_slots, dim), [block_n, dim]),
        TensorDescriptor.from_tensor(qkv.v.view(heads * dim, num_slots), [dim, block_n]),
        qkv.q_scale, qkv.k_scale, qkv.v_scale, ranges, workspace.partial, workspace.lse,
        rows, num_slots, heads * tiles_per_head, tiles_per_head, LOG2_E * dim**-0.5,
        DIM=dim, BLOCK_M=BLOCK_M, BLOCK_N=block_n, NUM_PIECES=workspace.num_pieces,
        IS_FP8=is_fp8, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    _combine_shares[(rows,)](
        workspace.partial, workspace.lse, ranges, out[0], out[1],
        heads * tiles_per_head, tiles_per_head, workspace.num_programs,
        HEADS=heads, HEADS_POW2=triton.next_power_of_2(heads), DIM=dim, BLOCK_M=BLOCK_M,
        BLOCK_N=block_n, NUM_PIECES=workspace.num_pieces, NUM_PARTS=workspace.num_parts,
        PARTS_POW2=triton.next_power_of_2(workspace.num_parts), IS_FP8=is_fp8, num_warps=4,
    )  # fmt: skip
