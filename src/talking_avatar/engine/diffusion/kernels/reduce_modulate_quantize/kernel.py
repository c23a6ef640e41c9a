"""One launch a rank: announce, wait for all, reduce own rows, hand out, announce, wait for all.

Order, per rank and epoch: (1) the launch before this one finished this rank's partial product;
the first program tells every rank so. (2) Every program waits until all ranks told it. (3) Rows
are reduced and written to all ranks. (4) The program that finishes last tells every rank, and
waits until all ranks told it; then the launch ends, and the next one on this stream may read the
output and overwrite the partial product. Every wait is bounded and leaves an error in ``state``.

Each wait spins on this rank's own memory; only announcements and rows cross the wires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..modulate_norm_quantize.kernel import modulated_row, quantized_row
from .tables import PeerTables

if TYPE_CHECKING:
    from . import Modulation

MAX_SPINS = 20_000_000
"""About ten seconds: longer than any healthy rank is late, short enough to say what failed."""


@triton.jit
def announce(flags, rank, epoch, WORLD: tl.constexpr):
    """Tell every rank that ``rank`` reached ``epoch``; what was written before is visible."""
    for peer in tl.static_range(WORLD):
        theirs = tl.load(flags + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(theirs + rank, epoch, sem="release", scope="sys")


@triton.jit
def await_all(flags, rank, epoch, state, max_spins, WORLD: tl.constexpr):
    """Wait until every rank told this one that it reached ``epoch``, or flag an error."""
    mine = tl.load(flags + rank).to(tl.pointer_type(tl.int32))
    for peer in tl.static_range(WORLD):
        spins = 0
        seen = tl.atomic_add(mine + peer, 0, sem="acquire", scope="sys")
        while (seen - epoch < 0) & (spins < max_spins):
            seen = tl.atomic_add(mine + peer, 0, sem="acquire", scope="sys")
            spins += 1
        if seen - epoch < 0:
            tl.atomic_xchg(state + 2, 1, scope="gpu")


@triton.jit
def _reduce_modulate_quantize(
    pointers, state, col_scale, residual, gate, shift, scale,
    rank, row_start, row_stop, width, eps, max_spins,
    WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    epoch = tl.load(state, volatile=True) + 1
    arrived = pointers + 4 * WORLD
    finished = pointers + 5 * WORLD
    if tl.program_id(0) == 0:
        announce(arrived, rank, epoch, WORLD)
    await_all(arrived, rank, epoch, state, max_spins, WORLD)
    tl.debug_barrier()
    cols = tl.arange(0, BLOCK)
    mask = cols < width
    for row in range(row_start + tl.program_id(0), row_stop, tl.num_programs(0)):
        total = tl.zeros([BLOCK], tl.float32)
        for peer in tl.static_range(WORLD):
            partial = tl.load(pointers + peer).to(tl.pointer_type(tl.bfloat16))
            row_scale = tl.load(pointers + WORLD + peer).to(tl.pointer_type(tl.float32))
            values = tl.load(partial + row * width + cols, mask=mask, other=0.0, volatile=True)
            total += values.to(tl.float32) * tl.load(row_scale + row, volatile=True)
        total *= tl.load(col_scale + cols, mask=mask, other=0.0)
        total *= tl.load(gate + cols, mask=mask, other=0.0)
        where = residual + (row - row_start) * width + cols
        total += tl.load(where, mask=mask, other=0.0)
        tl.store(where, total, mask=mask)
        y = modulated_row(total, shift, scale, cols, mask, width, eps)
        quantized, out_scale = quantized_row(tl.where(mask, y, 0.0))
        for peer in tl.static_range(WORLD):
            out = tl.load(pointers + 2 * WORLD + peer).to(tl.pointer_type(tl.float8e4nv))
            tl.store(out + row * width + cols, quantized, mask=mask)
            scales = tl.load(pointers + 3 * WORLD + peer).to(tl.pointer_type(tl.float32))
            tl.store(scales + row, out_scale)
    tl.debug_barrier()
    done = tl.atomic_add(state + 1, 1, sem="acq_rel", scope="sys")
    if done == tl.num_programs(0) - 1:
        announce(finished, rank, epoch, WORLD)
        await_all(finished, rank, epoch, state, max_spins, WORLD)
        tl.store(state + 1, 0)
        tl.store(state, epoch)


def launch(
    tables: PeerTables,
    col_scale: Tensor,
    residual: Tensor,
    modulation: Modulation,
    eps: float,
    num_programs: int | None = None,
) -> None:
    """Launch on the current stream.

    At most 33 programs when several ranks share one GPU: all ranks' waiting programs must be
    resident together, and leave room for the product that a late rank still computes.
    """
    start, stop = tables.owned
    width = col_scale.shape[0]
    shares_gpu = len({t.device for t in tables.partials}) < tables.world
    if num_programs is None:
        num_programs = 32 if shares_gpu else min(stop - start, 132)
    _reduce_modulate_quantize[(num_programs,)](
        tables.pointers, tables.state, col_scale, residual,
        modulation.gate, modulation.shift, modulation.scale,
        tables.rank, start, stop, width, eps, MAX_SPINS,
        WORLD=tables.world, BLOCK=triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
