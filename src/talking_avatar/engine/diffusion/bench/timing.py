"""Time of device work: captured once, replayed many times, measured with events.

A graph of many calls over rotating buffers takes launch gaps and warm caches out: the buffers
together exceed the L2 cache, so every call finds it as a running step would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of repeated runs, sorted."""

    ms: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.ms)

    @property
    def p99(self) -> float:
        return self.ms[min(len(self.ms) - 1, int(0.99 * len(self.ms)))]


def event() -> torch.cuda.Event:
    """Return an event that takes the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def capture(calls: Sequence[Callable[[], object]], warmup: int = 2) -> torch.cuda.CUDAGraph:
    """Run the calls a few times, then capture them in order as one CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for call in calls:
            call()
    return graph


def replay(graph: torch.cuda.CUDAGraph, repeats: int, warmup: int = 3) -> Times:
    """Time ``repeats`` replays one by one, back to back."""
    for _ in range(warmup):
        graph.replay()
    marks = [event() for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    spans = (a.elapsed_time(b) for a, b in pairwise(marks))
    return Times(tuple(sorted(spans)))


def per_call_us(
    calls: Sequence[Callable[[], object]], *, rounds: int = 4, repeats: int = 15
) -> float:
    """Return the median microseconds of one call.

    Args:
        calls: The same work over different buffers, which together exceed the L2 cache.
        rounds: How often the graph goes through them.
        repeats: Replays.
    """
    graph = capture(list(calls) * rounds, warmup=1)
    return replay(graph, repeats).p50 * 1e3 / (len(calls) * rounds)
