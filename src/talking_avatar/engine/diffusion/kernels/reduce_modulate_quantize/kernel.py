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
from triton.language.extra.cuda import gdc_wait

from ..formats import overlaps_launches
from ..modulate_norm_quantize.kernel import modulated_row, quantized_row
from .tables import PeerTables

if TYPE_CHECKING:
    from . import Modulation

NUM_PROGRAMS = 96
"""Two rows each: 11.1 us, against 11.4 with 132 programs and 13.7 with one row each (192 rows of
8,192, four ranks, H200, 2026-12-01)."""
MAX_SPINS = 2_000_000
"""About a second: longer than any healthy rank is late, short enough to say what failed."""


@triton.jit
def announce(flags, rank, epoch, WORLD: tl.constexpr):
    """Tell every rank that ``rank`` reached ``epoch``; what was written before is visible.

    One fence, then one store a rank: a release per store would wait for a fence each.
    """
    for peer in tl.static_range(WORLD):
        if peer == 0:
            tl.atomic_xchg(flags[peer] + rank, epoch, sem="release", scope="sys")
        else:
            tl.atomic_xchg(flags[peer] + rank, epoch, sem="relaxed", scope="sys")


@triton.jit
def epochs_ahead(mine, epoch, WORLD: tl.constexpr):
    """Return by how many epochs the slowest rank is past ``epoch``; negative while it is not.

    A difference, so that it stays right when epochs wrap around, after nine days of steps. One
    lane a rank, the last one repeated up to a power of two: the loads travel side by side.
    """
    lanes = tl.minimum(tl.arange(0, triton.next_power_of_2(WORLD)), WORLD - 1)
    seen = tl.inline_asm_elementwise(
        "ld.acquire.sys.global.b32 $0, [$1];", "=r,l", [mine + lanes], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
    return tl.min(seen - epoch, 0)


@triton.jit
def await_all(mine, epoch, state, max_spins, WORLD: tl.constexpr):
    """Wait until every rank told this one that it reached ``epoch``, or flag an error."""
    ahead = epochs_ahead(mine, epoch, WORLD)
    spins = 0
    while (ahead < 0) & (spins < max_spins):
        ahead = epochs_ahead(mine, epoch, WORLD)
        spins += 1
    if ahead < 0:
        tl.atomic_xchg(state + 2, 1, scope="gpu")


@triton.jit
def _reduce_modulate_quantize(
    partials, row_scales, outputs, output_scales, arrived, finished, my_arrived, my_finished,
    state, residual, factor, shift, scale,
    rank, row_start, row_stop, width, eps, max_spins,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
    epoch = tl.load(state, volatile=True) + 1
    if tl.program_id(0) == 0:
        announce(arrived, rank, epoch, WORLD)
    # Four values a thread in every format: no row has to change its layout in shared memory.
    cols = tl.max_contiguous(tl.arange(0, BLOCK), 4)
    mask = cols < width
    multiplier = tl.load(factor + cols, mask=mask, other=0.0)
    gain = 1.0 + tl.load(scale + cols, mask=mask, other=0.0)
    offset = tl.load(shift + cols, mask=mask, other=0.0)
    await_all(my_arrived, epoch, state, max_spins, WORLD)
    tl.debug_barrier()
    for row in range(row_start + tl.program_id(0), row_stop, tl.num_programs(0)):
        where = row * width + cols
        kept = residual + (row - row_start) * width + cols
        old = tl.load(kept, mask=mask, other=0.0)
        total = tl.zeros([BLOCK], tl.float32)
        for peer in tl.static_range(WORLD):
            # Past L1: it may hold what this address was an epoch ago.
            values = tl.load(partials[peer] + where, mask=mask, other=0.0, cache_modifier=".cg")
            total += values.to(tl.float32) * tl.load(row_scales[peer] + row, cache_modifier=".cg")
        total = total * multiplier + old
        tl.store(kept, total, mask=mask)
        quantized, out_scale = quantized_row(modulated_row(total, offset, gain, mask, width, eps))
        for peer in tl.static_range(WORLD):
            tl.store(outputs[peer] + where, quantized, mask=mask)
            tl.store(output_scales[peer] + row, out_scale)
    tl.debug_barrier()
    done = tl.atomic_add(state + 1, 1, sem="acq_rel", scope="gpu")
    if done == tl.num_programs(0) - 1:
        announce(finished, rank, epoch, WORLD)
        await_all(my_finished, epoch, state, max_spins, WORLD)
        tl.store(state + 1, 0)
        tl.store(state, epoch)


def launch(tables: PeerTables, residual: Tensor, modulation: Modulation, eps: float) -> None:
    """Launch on the current stream."""
    start, stop = tables.owned
    width = residual.shape[1]
    pdl = overlaps_launches(residual)
    _reduce_modulate_quantize[(min(stop - start, tables.num_programs or NUM_PROGRAMS),)](
        tables.partials, tables.row_scales, tables.outputs, tables.output_scales,
        tables.arrived, tables.finished,
        tables.arrived[tables.rank], tables.finished[tables.rank],
        tables.state, residual, modulation.factor, modulation.shift, modulation.scale,
        tables.rank, start, stop, width, eps, MAX_SPINS,
        WORLD=tables.world, BLOCK=triton.next_power_of_2(width), PDL=pdl,
        num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
