"""A row-parallel product and its all-reduce on several ranks that share this GPU.

Ranks are threads, each with a stream and a graph of its own, and meet through flags in device
memory, as they do across GPUs. What is emulated: the wires, since all memory is local; and each
rank has only its share of the GPU.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.bench.report import Row
from talking_avatar.engine.diffusion.bench.timing import event, per_call_us
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import (
    Modulation,
    PeerTables,
    fp8_matmul,
    reduce_modulate_quantize,
)
from talking_avatar.engine.diffusion.kernels.formats import dequantize, quantize
from talking_avatar.engine.diffusion.kernels.modulate_norm_quantize.reference import (
    normalize_modulate,
)
from talking_avatar.engine.diffusion.kernels.numerics import calc_diff

NUM_REPLAYS = 200
PROGRAMS_A_RANK = 24
"""Waiting programs of one rank: three ranks leave 60 of 132 multiprocessors to the fourth."""


@dataclass(frozen=True, slots=True, eq=False)
class VirtualRank:
    """One rank's product, tables and residual."""

    x: Tensor
    x_scale: Tensor
    w: Tensor
    tables: PeerTables
    residual: Tensor

    def run(self, modulation: Modulation) -> None:
        """Multiply, then reduce with all other ranks."""
        fp8_matmul(self.x, self.w, out=self.tables.partials[self.tables.rank])
        reduce_modulate_quantize(self.tables, self.residual, modulation)


def virtual_ranks(
    rows: int, width: int, depth: int, world: int, device: torch.device
) -> list[VirtualRank]:
    """Build ranks with random operands over shared tables."""
    xs = [quantize(torch.randn(rows, depth, device=device)) for _ in range(world)]
    ws = [quantize(torch.randn(width, depth, device=device))[0] for _ in range(world)]
    partials = [torch.empty(rows, width, dtype=torch.bfloat16, device=device) for _ in xs]
    outputs = [quantize(torch.randn(rows, width, device=device)) for _ in xs]
    flags = [torch.zeros(world, dtype=torch.int32, device=device) for _ in range(2 * world)]
    ranks = []
    for rank in range(world):
        tables = PeerTables.of(
            rank,
            partials,
            [scale for _, scale in xs],
            [values for values, _ in outputs],
            [scale for _, scale in outputs],
            flags[:world],
            flags[world:],
            num_programs=PROGRAMS_A_RANK,
        )
        start, stop = tables.owned
        residual = torch.randn(stop - start, width, device=device)
        ranks.append(VirtualRank(*xs[rank], ws[rank], tables, residual))
    return ranks


def replay_together(
    graphs: list[torch.cuda.CUDAGraph],
    streams: list[torch.cuda.Stream],
    times: int,
    late: random.Random | None = None,
) -> None:
    """Replay every rank's graph from a thread of its own; ``late`` delays one at random."""

    def work(rank: int) -> None:
        with torch.cuda.stream(streams[rank]):
            for _ in range(times):
                if late is not None and late.random() < 0.25:
                    torch.cuda._sleep(late.randrange(200_000))  # type: ignore[no-untyped-call]
                graphs[rank].replay()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(graphs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()


def measure(config: AvatarDiTConfig, tp: int, device: torch.device) -> Iterator[Row]:
    """Time both row-parallel products with their reductions, against the bare products."""
    inner, ffn = config.inner // tp, config.ffn // tp
    for name, depth in (("out", inner), ("down", ffn)):
        yield measure_product(name, config.chunk_tokens, config.hidden, depth, tp, device)


def measure_product(
    name: str, rows: int, width: int, depth: int, world: int, device: torch.device
) -> Row:
    """Check and time one product and its reduction on ``world`` virtual ranks."""
    ranks = virtual_ranks(rows, width, depth, world, device)
    modulation = Modulation(
        *(torch.randn(width, device=device) * size for size in (1e-3, 0.1, 0.1))
    )
    kept = [rank.residual.double() for rank in ranks]
    streams = [torch.cuda.Stream() for _ in ranks]  # type: ignore[no-untyped-call]
    warm_up(ranks, modulation)
    graphs = []
    for rank, stream in zip(ranks, streams, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            rank.run(modulation)
        graphs.append(graph)
    replay_together(graphs, streams, 1)
    if any(rank.tables.failed for rank in ranks):
        raise RuntimeError(
            f"{name}: a wait between {world} ranks on one GPU ran out in the first replay; "
            "their programs were not resident together"
        )
    error = _error(ranks, kept, modulation)
    replay_together(graphs, streams, 100, random.Random(0))
    equal = all(_same_bits(ranks[0], rank) for rank in ranks)
    failed = any(rank.tables.failed for rank in ranks)
    start, stop = event(), event()
    start.record()
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    replay_together(graphs, streams, NUM_REPLAYS)
    stop.record()
    torch.cuda.synchronize()
    us = start.elapsed_time(stop) * 1e3 / NUM_REPLAYS
    bare = per_call_us(
        [lambda: [fp8_matmul(r.x, r.w, out=r.tables.partials[r.tables.rank]) for r in ranks]]
    )
    return Row(
        name=f"{name} + reduce, {world} virtual ranks",
        numbers={
            "us": us,
            "bare_products_us": bare,
            "ratio": us / bare,
            "calc_diff": error,
            "bitwise_equal": str(equal),
            "wait_ran_out": str(failed),
        },
        note="unfused: library product, then one reduce launch a rank; one replay at a time",
    )


def warm_up(ranks: list[VirtualRank], modulation: Modulation) -> None:
    """Load every module before anything waits: a lazy load under a waiting rank deadlocks.

    Each rank runs alone, its peers' flags set as if they had come; then all flags start anew.
    """
    torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
    kept = [rank.residual.clone() for rank in ranks]
    flags = [*ranks[0].tables.arrived, *ranks[0].tables.finished]
    for flag in flags:
        flag.fill_(1 << 30)
    for rank in ranks:
        rank.run(modulation)
    torch.cuda.synchronize()
    for flag in flags:
        flag.zero_()
    for rank, residual in zip(ranks, kept, strict=True):
        rank.tables.state.zero_()
        rank.residual.copy_(residual)
    torch.cuda.synchronize()


def _error(ranks: list[VirtualRank], kept: list[Tensor], modulation: Modulation) -> float:
    total = torch.stack(
        [(r.x.double() * r.x_scale.double()[:, None]) @ r.w.double().t() for r in ranks]
    ).sum(0)
    residual = torch.cat(kept) + modulation.factor.double() * total
    expected = normalize_modulate(
        residual, modulation.shift.double(), modulation.scale.double(), 1e-6
    )
    tables = ranks[-1].tables
    return calc_diff(dequantize(tables.outputs[-1], tables.output_scales[-1]), expected)


def _same_bits(one: VirtualRank, other: VirtualRank) -> bool:
    mine, theirs = (rank.tables.outputs[rank.tables.rank] for rank in (one, other))
    return torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
