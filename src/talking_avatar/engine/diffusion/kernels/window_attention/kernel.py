"""Two launches: every program walks its share of key blocks; then the shares are combined.

Exponents are base 2. With FP8 the value scale joins the exponent: u = q k + log2(v_scale), so
that the probabilities, which carry the value scales, use FP8's range whatever these are; their
sum divides the scale out again.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from ..formats import overlaps_launches
from ..write_qkv import QueryKeyValue
from .workspace import AttentionWorkspace

LOG2_E = 1.4426950408889634


@triton.jit
def _num_blocks(start, stop, BLOCK_N: tl.constexpr):
    # V's rows run along slots, and TMA starts a row at a multiple of 16 bytes.
    length = stop - start // 16 * 16
    return tl.where(stop > start, (length + BLOCK_N - 1) // BLOCK_N, 0)


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
    if IS_FP8:
        logit_scale *= tl.load(q_scale)
    rows = tl.arange(0, BLOCK_M)
    while unit < last_unit:
        tile = unit // num_blocks
        head = tile // tiles_per_head
        first_row = (tile % tiles_per_head) * BLOCK_M
        first_block = unit - tile * num_blocks
        last_block = tl.minimum(num_blocks, first_block + last_unit - unit)
        unit += last_block - first_block
        q = q_rows.load([head * num_rows + first_row, 0])
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        norm = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, DIM], tl.float32)
        for block in tl.range(first_block, last_block):
            first = start_0
            origin = start_0 // 16 * 16 + block * BLOCK_N
            stop = stop_0
            if block >= until_0:
                first = start_1
                origin = start_1 // 16 * 16 + (block - until_0) * BLOCK_N
                stop = stop_1
            if block >= until_1:
                first = start_2
                origin = start_2 // 16 * 16 + (block - until_1) * BLOCK_N
                stop = stop_2
            slots = origin + columns
            valid = (slots >= first) & (slots < stop)
            k = k_rows.load([head * num_slots + origin, 0])
            logits = tl.dot(q, k.T)
            if IS_FP8:
                scales = head * num_slots + slots
                key_scale = tl.load(k_scale + scales, mask=valid, other=0.0)
                value_scale = tl.load(v_scale + scales, mask=valid, other=0.0)
                bias = tl.log2(value_scale)
                undo = tl.where(valid, 1.0 / value_scale, 0.0)
                u = logits * (key_scale * logit_scale)[None, :] + bias[None, :]
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
            v = v_rows.load([head * DIM, origin])
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
    PARTS_POW2: tl.constexpr, IS_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if PDL:
        gdc_wait()
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
    begin = program * total // num_programs
    # With fewer blocks than programs, some programs between the first and the last had no work.
    has_work = (program + 1) * total // num_programs > begin
    exists = (program <= last[:, None]) & (heads < HEADS)[:, None] & has_work
    piece = tile[:, None] - begin // num_blocks
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
        mask = tl.sum((is_part & exists).to(tl.int32), 1) > 0
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
) -> None:
    """Launch both on the current stream."""
    logit_scale = LOG2_E * qkv.q.shape[2] ** -0.5
    if workspace.tiling.is_hopper:
        from .kernel_hopper import attend_share
    else:
        attend_share = attend_share_anywhere
    attend_share(qkv, ranges, workspace, logit_scale)
    combine_shares(qkv, ranges, out, workspace)


def attend_share_anywhere(
    qkv: QueryKeyValue,
    ranges: Tensor,
    workspace: AttentionWorkspace,
    logit_scale: float,
    *,
    num_warps: int = 8,
) -> None:
    """Launch the portable first half."""
    heads, rows, dim = qkv.q.shape
    num_slots = qkv.k.shape[1]
    block_m, block_n = workspace.tiling.block_m, workspace.tiling.block_n
    tiles_per_head = triton.cdiv(rows, block_m)
    is_fp8 = qkv.k_scale is not None
    _attend_share[(workspace.num_programs,)](
        TensorDescriptor.from_tensor(qkv.q.view(heads * rows, dim), [block_m, dim]),
        TensorDescriptor.from_tensor(qkv.k.view(heads * num_slots, dim), [block_n, dim]),
        TensorDescriptor.from_tensor(qkv.v.view(heads * dim, num_slots), [dim, block_n]),
        qkv.q_scale, qkv.k_scale, qkv.v_scale, ranges, workspace.partial, workspace.lse,
        rows, num_slots, heads * tiles_per_head, tiles_per_head, logit_scale,
        DIM=dim, BLOCK_M=block_m, BLOCK_N=block_n, NUM_PIECES=workspace.num_pieces,
        IS_FP8=is_fp8, num_warps=num_warps, num_stages=3 if is_fp8 else 2,
    )  # fmt: skip


def combine_shares(
    qkv: QueryKeyValue,
    ranges: Tensor,
    out: tuple[Tensor, Tensor | None],
    workspace: AttentionWorkspace,
) -> None:
    """Launch the second half."""
    heads, rows, dim = qkv.q.shape
    tiling = workspace.tiling
    pdl = overlaps_launches(out[0])
    tiles_per_head = triton.cdiv(rows, tiling.block_m)
    _combine_shares[(rows,)](
        workspace.partial, workspace.lse, ranges, out[0], out[1],
        heads * tiles_per_head, tiles_per_head, workspace.num_programs,
        HEADS=heads, HEADS_POW2=triton.next_power_of_2(heads), DIM=dim, BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n, NUM_PIECES=workspace.num_pieces, NUM_PARTS=workspace.num_parts,
        PARTS_POW2=triton.next_power_of_2(workspace.num_parts),
        IS_FP8=qkv.k_scale is not None, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
