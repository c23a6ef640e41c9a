"""One rank's step: ring engine and baseline, each as one CUDA graph, under sustained load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from talking_avatar.engine.diffusion.bench.baseline_step import Baseline, baseline_step
from talking_avatar.engine.diffusion.bench.machine import Sampler
from talking_avatar.engine.diffusion.bench.report import Row
from talking_avatar.engine.diffusion.bench.ring_step import layer_error, plain_step, ring_step
from talking_avatar.engine.diffusion.bench.shard import Shard
from talking_avatar.engine.diffusion.bench.timing import capture, replay
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import QueryKeyValue

EMULATED = "other ranks' partials and outputs are local buffers; no wires"


def measure(
    config: AvatarDiTConfig,
    tp: int,
    device: torch.device,
    *,
    sustain_s: float = 60.0,
    num_replays: int = 200,
    num_layers: int | None = None,
) -> Iterator[Row]:
    """Time a step in every mode.

    Args:
        config: The model; random weights.
        tp: Ranks; this is rank 0.
        device: The GPU.
        sustain_s: Load before the first timed replay.
        num_replays: Timed replays of the ring step; a quarter of them for each other mode.
        num_layers: Fewer than the model's for a quick look.
    """
    shard = Shard(config, tp, device, num_layers)
    error = layer_error(shard)
    ring = capture([lambda: ring_step(shard)], warmup=1)
    yield _row("ring", ring, num_replays, sustain_s, {"layer_calc_diff": error})
    if shard.tables["out"].failed:
        raise RuntimeError("a wait between ranks ran out: the step's flags are wrong")
    plain = capture([lambda: plain_step(shard, plain_buffers(shard))], warmup=1)
    yield _row("ring, QKV stored plainly", plain, num_replays // 4)
    yield _row("ring, again", ring, num_replays // 4)
    del plain, ring
    state = Baseline(shard)
    yield _eager("baseline, eager", lambda: baseline_step(state))
    graph = capture([lambda: baseline_step(state)], warmup=1)
    yield _row("baseline, graph", graph, num_replays // 4, sustain_s / 6)


def plain_buffers(shard: Shard) -> QueryKeyValue:
    """Return BF16 buffers for one chunk: what is written when nothing is kept."""
    shape = shard.heads, -(-shard.tokens // 16) * 16, shard.dim
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": shard.device}
    heads, slots, dim = shape
    return QueryKeyValue(
        torch.empty(heads, shard.tokens, dim, **bf16),
        torch.empty(heads, slots, dim, **bf16),
        torch.empty(heads, dim, slots, **bf16),
    )


def _row(
    name: str,
    graph: torch.cuda.CUDAGraph,
    num_replays: int,
    sustain_s: float = 0.0,
    extra: dict[str, float | str] | None = None,
) -> Row:
    deadline = time.monotonic() + sustain_s
    while time.monotonic() < deadline:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
    with Sampler() as sampler:
        times = replay(graph, num_replays)
    numbers: dict[str, float | str] = {"p50_ms": times.p50, "p99_ms": times.p99}
    return Row(name=name, numbers=numbers | sampler.summary() | (extra or {}), note=EMULATED)


def _eager(name: str, run: Callable[[], None], repeats: int = 3) -> Row:
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - start) * 1e3 / repeats
    return Row(name=name, numbers={"mean_ms": ms}, note=EMULATED)
