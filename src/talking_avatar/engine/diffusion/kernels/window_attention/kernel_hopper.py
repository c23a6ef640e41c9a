"""`window_attention`'s first launch for Hopper: one warp loads, two warpgroups multiply.

A program has 128 queries: 64 rows each for two consumer warpgroups that run at their own pace,
so that one's exponentials hide behind the other's products. One warp brings key and value blocks
through TMA, another prepares what a block's columns need: key scale, log2 of the value scale
(minus infinity outside the range) and its reciprocal.

Exponents are base 2: u = (q k) k_scale q_scale + log2(v_scale). The probabilities 2^(u - max) so
carry the value scales and use FP8's range whatever these are; the norm divides them out again.
"""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..write_qkv import QueryKeyValue
from .workspace import AttentionWorkspace

ROWS = 64
"""Queries of one warpgroup."""


@gluon.jit
def _num_blocks(start, stop, BLOCK_N: gl.constexpr):
    # V's rows run along slots, and TMA starts a row at a multiple of 16 bytes.
    length = stop - start // 16 * 16
    return gl.where(stop > start, (length + BLOCK_N - 1) // BLOCK_N, 0)


@gluon.jit
def _share(ranges, num_tiles, BLOCK_N: gl.constexpr):
    """Return blocks per tile, and the first and last unit of this program's share."""
    num_blocks = _num_blocks(gl.load(ranges), gl.load(ranges + 1), BLOCK_N)
    num_blocks += _num_blocks(gl.load(ranges + 2), gl.load(ranges + 3), BLOCK_N)
    num_blocks += _num_blocks(gl.load(ranges + 4), gl.load(ranges + 5), BLOCK_N)
    total = num_tiles * num_blocks
    program = gl.program_id(0)
    first = program * total // gl.num_programs(0)
    return num_blocks, first, (program + 1) * total // gl.num_programs(0)


@gluon.jit
def _bounds(ranges, BLOCK_N: gl.constexpr):
    """Return bounds of the three ranges, and up to which block each reaches."""
    start_0, stop_0 = gl.load(ranges), gl.load(ranges + 1)
    start_1, stop_1 = gl.load(ranges + 2), gl.load(ranges + 3)
    start_2, stop_2 = gl.load(ranges + 4), gl.load(ranges + 5)
    until_0 = _num_blocks(start_0, stop_0, BLOCK_N)
    until_1 = until_0 + _num_blocks(start_1, stop_1, BLOCK_N)
    return start_0, stop_0, start_1, stop_1, start_2, stop_2, until_0, until_1


@gluon.jit
def _slots_of(
    block, start_0, stop_0, start_1, stop_1, start_2, stop_2, until_0, until_1,
    BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Return where a block begins in memory, and the range it belongs to."""
    start = gl.where(block < until_0, start_0, gl.where(block < until_1, start_1, start_2))
    stop = gl.where(block < until_0, stop_0, gl.where(block < until_1, stop_1, stop_2))
    before = gl.where(block < until_0, 0, gl.where(block < until_1, until_0, until_1))
    return start // 16 * 16 + (block - before) * BLOCK_N, start, stop


@gluon.jit
def _produce(
    q_rows, k_rows, v_rows, ranges, q_buffer, k_buffer, v_buffer,
    q_full, q_empty, k_full, k_empty, v_full, v_empty,
    num_rows, num_slots, num_tiles, tiles_per_head,
    PARTS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    num_blocks, unit, last_unit = _share(ranges, num_tiles, BLOCK_N)
    a0, o0, a1, o1, a2, o2, u0, u1 = _bounds(ranges, BLOCK_N)
    step = 0
    tiles_done = 0
    while unit < last_unit:
        tile = unit // num_blocks
        head = tile // tiles_per_head
        first_row = (tile % tiles_per_head) * (PARTS * ROWS)
        first_block = unit - tile * num_blocks
        last_block = gl.minimum(num_blocks, first_block + last_unit - unit)
        unit += last_block - first_block
        buffer = tiles_done % 2
        mbarrier.wait(q_empty.index(buffer), ((tiles_done // 2) & 1) ^ 1)
        mbarrier.expect(q_full.index(buffer), q_rows.block_type.nbytes * PARTS)
        row = head * num_rows + first_row
        for part in gl.static_range(PARTS):
            tma.async_copy_global_to_shared(
                q_rows, [row + part * ROWS, 0], q_full.index(buffer),
                q_buffer.index(buffer * PARTS + part),
            )  # fmt: skip
        tiles_done += 1
        for block in range(first_block, last_block):
            origin, _, _ = _slots_of(block, a0, o0, a1, o1, a2, o2, u0, u1, BLOCK_N)
            stage = step % STAGES
            phase = ((step // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), phase)
            mbarrier.expect(k_full.index(stage), k_rows.block_type.nbytes)
            tma.async_copy_global_to_shared(
                k_rows, [head * num_slots + origin, 0], k_full.index(stage), k_buffer.index(stage)
            )
            mbarrier.wait(v_empty.index(stage), phase)
            mbarrier.expect(v_full.index(stage), v_rows.block_type.nbytes)
            tma.async_copy_global_to_shared(
                v_rows, [head * DIM, origin], v_full.index(stage), v_buffer.index(stage)
            )
            step += 1


@gluon.jit
def _fast(NAME: gl.constexpr, x):
    """One instruction of the special function unit: 2 ulp, no branches."""
    return gl.inline_asm_elementwise(
        NAME + ".approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _prepare_scales(
    q_scale, k_scale, v_scale, ranges, scale_buffer, v_full, v_empty,
    num_slots, num_tiles, tiles_per_head, logit_scale,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, IS_FP8: gl.constexpr,
):  # fmt: skip
    """Bring what a block's columns need, one block ahead of its use: loads take a microsecond."""
    num_blocks, unit, last_unit = _share(ranges, num_tiles, BLOCK_N)
    a0, o0, a1, o1, a2, o2, u0, u1 = _bounds(ranges, BLOCK_N)
    column_layout: gl.constexpr = gl.BlockedLayout([BLOCK_N // 32], [32], [1], [0])
    columns = gl.arange(0, BLOCK_N, layout=column_layout)
    origin, first, stop = _slots_of(unit % num_blocks, a0, o0, a1, o1, a2, o2, u0, u1, BLOCK_N)
    slots = origin + columns
    valid = (slots >= first) & (slots < stop)
    if IS_FP8:
        logit_scale *= gl.load(q_scale)
        where = unit // num_blocks // tiles_per_head * num_slots + slots
        keys = gl.load(k_scale + where, mask=valid, other=0.0)
        values = gl.load(v_scale + where, mask=valid, other=0.0)
    first_unit = unit
    for unit in range(first_unit, last_unit):
        # Past the share's end this reads a block that exists, and nobody uses it.
        following = gl.minimum(unit + 1, last_unit - 1)
        origin, first, stop = _slots_of(
            following % num_blocks, a0, o0, a1, o1, a2, o2, u0, u1, BLOCK_N
        )
        next_slots = origin + columns
        next_valid = (next_slots >= first) & (next_slots < stop)
        if IS_FP8:
            where = following // num_blocks // tiles_per_head * num_slots + next_slots
            next_keys = gl.load(k_scale + where, mask=next_valid, other=0.0)
            next_values = gl.load(v_scale + where, mask=next_valid, other=0.0)
        step = unit - first_unit
        stage = step % STAGES
        mbarrier.wait(v_empty.index(stage), ((step // STAGES) & 1) ^ 1)
        if IS_FP8:
            scale_buffer.index(stage * 3).store(keys * logit_scale)
            scale_buffer.index(stage * 3 + 1).store(_fast("lg2", values))
            undo = gl.where(valid, _fast("rcp", values), 0.0)
            scale_buffer.index(stage * 3 + 2).store(undo)
            keys, values = next_keys, next_values
        else:
            scale_buffer.index(stage * 3).store(gl.where(valid, 0.0, float("-inf")))
        valid = next_valid
        gl.thread_barrier()
        mbarrier.arrive(v_full.index(stage), count=1)


@gluon.jit
def _consume(
    ranges, partial, lse, q_buffer, k_buffer, v_buffer, scale_buffer,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, num_tiles, logit_scale,
    PART: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    DIM: gl.constexpr, STAGES: gl.constexpr, NUM_PIECES: gl.constexpr, IS_FP8: gl.constexpr,
):  # fmt: skip
    DTYPE: gl.constexpr = k_buffer.dtype
    MMA_K: gl.constexpr = 32 if IS_FP8 else 16
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, MMA_K])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, MMA_K])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 4 if IS_FP8 else 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    s_cols: gl.constexpr = gl.SliceLayout(0, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    num_blocks, unit, last_unit = _share(ranges, num_tiles, BLOCK_N)
    piece = gl.program_id(0) * NUM_PIECES
    rows = PART * ROWS + gl.arange(0, ROWS, layout=s_rows)
    step = 0
    tiles_done = 0
    while unit < last_unit:
        tile = unit // num_blocks
        first_block = unit - tile * num_blocks
        last_block = gl.minimum(num_blocks, first_block + last_unit - unit)
        unit += last_block - first_block
        largest = gl.full([ROWS], float("-inf"), gl.float32, layout=s_rows)
        norm = gl.zeros([ROWS], gl.float32, layout=s_rows)
        acc = gl.zeros([ROWS, DIM], gl.float32, layout=o_layout)
        empty = gl.zeros([ROWS, BLOCK_N], gl.float32, layout=s_layout)
        buffer = tiles_done % 2
        q = q_buffer.index(buffer * PARTS + PART)
        mbarrier.wait(q_full.index(buffer), (tiles_done // 2) & 1)
        mbarrier.wait(k_full.index(step % STAGES), (step // STAGES) & 1)
        logits = warpgroup_mma(
            q, k_buffer.index(step % STAGES).permute((1, 0)), empty,
            use_acc=False, is_async=True,
        )  # fmt: skip
        logits = warpgroup_mma_wait(0, deps=(logits,))
        gl.thread_barrier()
        mbarrier.arrive(k_empty.index(step % STAGES), count=1)
        for block in range(first_block, last_block):
            stage = step % STAGES
            mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
            bias = scale_buffer.index(stage * 3 + (1 if IS_FP8 else 0)).load(s_cols)
            if IS_FP8:
                keys = scale_buffer.index(stage * 3).load(s_cols)
                undo = scale_buffer.index(stage * 3 + 2).load(s_cols)
                u = logits * keys[None, :] + bias[None, :]
            else:
                u = logits * logit_scale + bias[None, :]
            new_largest = gl.maximum(largest, gl.max(u, 1))
            shrink = gl.exp2(largest - new_largest)
            largest = new_largest
            if IS_FP8:
                # 2^8 is the most that keeps the largest probability inside E4M3's 448.
                p = gl.exp2(u - (new_largest - 8.0)[:, None])
                norm = norm * shrink + gl.sum(p * undo[None, :], 1)
            else:
                p = gl.exp2(u - new_largest[:, None])
                norm = norm * shrink + gl.sum(p, 1)
            p = gl.convert_layout(p.to(DTYPE), p_layout)
            acc *= gl.convert_layout(shrink, o_rows)[:, None]
            acc = warpgroup_mma(p, v_buffer.index(stage).permute((1, 0)), acc, is_async=True)
            # The next logits are queued behind this output, so that the tensor cores never wait
            # for this warpgroup. After a tile's last block nobody reads them: no wait, no release.
            has_next = block + 1 < last_block
            step += 1
            next_stage = step % STAGES
            mbarrier.wait(k_full.index(next_stage), (step // STAGES) & 1, pred=has_next)
            logits = warpgroup_mma(
                q, k_buffer.index(next_stage).permute((1, 0)), empty,
                use_acc=False, is_async=True,
            )  # fmt: skip
            acc, logits = warpgroup_mma_wait(0, deps=(acc, logits))
            gl.thread_barrier()
            mbarrier.arrive(v_empty.index(stage), count=1)
            mbarrier.arrive(k_empty.index(next_stage), count=1, pred=has_next)
        mbarrier.arrive(q_empty.index(buffer), count=1)
        tiles_done += 1
        share = acc * gl.convert_layout(_fast("rcp", norm), o_rows)[:, None]
        out_rows = PART * ROWS + gl.arange(0, ROWS, layout=o_rows)
        dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, o_layout))
        where_out = (piece * (PARTS * ROWS) + out_rows)[:, None] * DIM + dims[None, :]
        gl.store(partial + where_out, share.to(gl.bfloat16))
        offset = 8.0 if IS_FP8 else 0.0
        gl.store(lse + piece * (PARTS * ROWS) + rows, largest + _fast("lg2", norm) - offset)
        piece += 1


@gluon.jit
def _attend_share(
    q_rows, k_rows, v_rows, q_scale, k_scale, v_scale, ranges, partial, lse,
    num_rows, num_slots, num_tiles, tiles_per_head, logit_scale,
    PARTS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr,
    STAGES: gl.constexpr,
    NUM_PIECES: gl.constexpr, IS_FP8: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    gdc_wait()
    DTYPE: gl.constexpr = k_rows.dtype
    q_buffer = gl.allocate_shared_memory(DTYPE, [2 * PARTS, ROWS, DIM], q_rows.layout)
    k_buffer = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], k_rows.layout)
    v_buffer = gl.allocate_shared_memory(DTYPE, [STAGES, DIM, BLOCK_N], v_rows.layout)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scale_buffer = gl.allocate_shared_memory(gl.float32, [STAGES * 3, BLOCK_N], flat)
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    for buffer in gl.static_range(2):
        mbarrier.init(q_full.index(buffer), count=1)
        mbarrier.init(q_empty.index(buffer), count=PARTS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        # Full of values: the copy, and the producer's word that the scales are there.
        mbarrier.init(v_full.index(stage), count=2)
        mbarrier.init(k_empty.index(stage), count=PARTS)
        mbarrier.init(v_empty.index(stage), count=PARTS)
    fence_async_shared()
    # The tuples stand inside the call: assigned first, their constants would become values.
    gl.warp_specialize(
        [
            (_consume, (
                ranges, partial, lse, q_buffer, k_buffer, v_buffer, scale_buffer,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, num_tiles, logit_scale,
                0, PARTS, ROWS, BLOCK_N, DIM, STAGES, NUM_PIECES, IS_FP8,
            )),
            (_consume, (
                ranges, partial, lse, q_buffer, k_buffer, v_buffer, scale_buffer,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, num_tiles, logit_scale,
                1, PARTS, ROWS, BLOCK_N, DIM, STAGES, NUM_PIECES, IS_FP8,
            )),
            (_produce, (
                q_rows, k_rows, v_rows, ranges, q_buffer, k_buffer, v_buffer,
                q_full, q_empty, k_full, k_empty, v_full, v_empty,
                num_rows, num_slots, num_tiles, tiles_per_head,
                PARTS, ROWS, BLOCK_N, DIM, STAGES,
            )),
            (_prepare_scales, (
                q_scale, k_scale, v_scale, ranges, scale_buffer, v_full, v_empty,
                num_slots, num_tiles, tiles_per_head, logit_scale, BLOCK_N, STAGES, IS_FP8,
            )),
        ],
        [4, 1, 1], [232, 32, 32],
    )  # fmt: skip


def _descriptor(x: Tensor, block: list[int], dtype: gl.dtype) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor.from_tensor(x, block, layout)


def attend_share(
    qkv: QueryKeyValue, ranges: Tensor, workspace: AttentionWorkspace, logit_scale: float
) -> None:
    """Launch on the current stream; head_dim 64 or 128."""
    heads, rows, dim = qkv.q.shape
    num_slots = qkv.k.shape[1]
    tiles_per_head = triton.cdiv(rows, workspace.tiling.block_m)
    block_n = workspace.tiling.block_n
    parts = workspace.tiling.block_m // ROWS
    is_fp8 = qkv.k_scale is not None
    stages = 512 // block_n if is_fp8 else max(2, 192 // block_n)
    dtype = gl.float8e4nv if is_fp8 else gl.bfloat16
    _attend_share[(workspace.num_programs,)](
        _descriptor(qkv.q.view(heads * rows, dim), [ROWS, dim], dtype),
        _descriptor(qkv.k.view(heads * num_slots, dim), [block_n, dim], dtype),
        _descriptor(qkv.v.view(heads * dim, num_slots), [dim, block_n], dtype),
        qkv.q_scale, qkv.k_scale, qkv.v_scale, ranges, workspace.partial, workspace.lse,
        rows, num_slots, heads * tiles_per_head, tiles_per_head, logit_scale,
        PARTS=parts, ROWS=ROWS, BLOCK_N=block_n, DIM=dim, STAGES=stages,
        NUM_PIECES=workspace.num_pieces, IS_FP8=is_fp8, num_warps=4, launch_pdl=True,
    )  # fmt: skip
