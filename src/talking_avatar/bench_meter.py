"""What metering costs a live session: CPU and memory of meter, ledger and metrics.

Takes nothing. Gives a `MeterCost`, by doing for many sessions at once what one does in a second:
24 chunks counted, 24 frames of speech, two heartbeats into a real file, and a scrape every 15 s.
CPU time is the process's own, so a busy machine changes little.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from talking_avatar.cost import Meter, RateCard, SessionTally
from talking_avatar.cost.holding import Holdings
from talking_avatar.engine.base import FPS, SAMPLES_PER_FRAME, Device, FrameBlock
from talking_avatar.ledger.store import Beat, Store
from talking_avatar.ledger.writer import HEARTBEAT_S
from talking_avatar.stats import StatsRecorder
from talking_avatar.telemetry import Sessions
from talking_avatar.watch import Watch

SCRAPE_S = 15.0
_DEVICES = tuple(
    Device(f"cuda:{n}", "H200", "decode" if n == 3 else "denoise") for n in range(4)
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterCost:
    """Of one session on four GPUs.

    Attributes:
        num_sessions: Measured together.
        counting, ledger, metrics: Percent of one core.
        percent_of_a_core: Their sum.
        session_bytes: Of memory, everything that is kept for a session.
    """

    num_sessions: int
    counting: float
    ledger: float
    metrics: float
    percent_of_a_core: float
    session_bytes: int


async def run_meter(num_sessions: int = 1, *, seconds: int = 120) -> MeterCost:
    """Meter sessions for so many seconds of theirs, as fast as it goes."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    holdings, sessions = Holdings(), Sessions()
    clock = [0.0]
    watches = [_watch(number, holdings, clock) for number in range(num_sessions)]
    for watch in watches:
        watch.meter.start(0.0)
        sessions.add(watch)
    written = [watch.snapshot().tally for watch in watches]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counting = _seconds(lambda: _count(watches, clock, seconds))
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "cost.db", time.time_ns() // 1_000)
        beats = round(seconds / HEARTBEAT_S)
        ledger = _seconds(lambda: _beat(store, watches, written, clock, beats))
        store.close()
    scrapes = max(1, round(seconds / SCRAPE_S))
    metrics = _seconds(lambda: [sessions.totals() for _ in range(scrapes)])
    percent = 100 / (num_sessions * seconds)
    return MeterCost(
        num_sessions=num_sessions,
        counting=counting * percent,
        ledger=ledger * percent,
        metrics=metrics * percent,
        percent_of_a_core=(counting + ledger + metrics) * percent,
        session_bytes=(after - before) // num_sessions,
    )


def _watch(number: int, holdings: Holdings, clock: list[float]) -> Watch:
    devices = [Device(f"{number}.{d.name}", d.kind, d.role) for d in _DEVICES]
    meter = Meter(devices, rates=RateCard.of({"H200": "3.79"}), holdings=holdings)
    return Watch("bench", meter, StatsRecorder(), lambda: clock[0], {"customer": f"c{number}"})


def _count(watches: list[Watch], clock: list[float], seconds: int) -> None:
    block = FrameBlock(0, np.zeros((1, 2, 2, 3), np.uint8), 0.016)
    for _ in range(seconds * FPS):
        clock[0] += 1 / FPS
        for watch in watches:
            watch.meter.note(block)
            watch.meter.note_speech(SAMPLES_PER_FRAME)


def _beat(
    store: Store, watches: list[Watch], written: list[SessionTally], clock: list[float], num: int
) -> None:
    for _ in range(num):
        clock[0] += HEARTBEAT_S
        beats = []
        for place, watch in enumerate(watches):
            now = watch.snapshot()
            beats.append(Beat(watch, now, now.tally.since(written[place]), "open"))
            written[place] = now.tally
        store.write(beats, time.time_ns() // 1_000)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
