"""Time: cases 22 and 26 to 30, in virtual time but for the one that blocks a real loop."""

from __future__ import annotations

import asyncio
import ctypes
import random
import threading
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from talking_avatar.session import AvatarSession
from talking_avatar.stats import Histogram, StatsRecorder
from talking_avatar.testing import (
    FakeEngine,
    RecordingTransport,
    counted,
    in_virtual_time,
)

OpenStage = Any
RATE = 24_000


def in_step(transport: RecordingTransport) -> bool:
    """Whether picture and sound of every frame belong to the same place on the timeline."""
    return all(
        frame.pts == frame.index / 24 and len(frame.audio) == 1_000 for frame in transport.frames
    )


@in_virtual_time
async def test_ten_minutes_of_idle_flow_at_24_fps_in_flat_memory() -> None:
    transport = RecordingTransport(keep=24)
    async with AvatarSession("any", engine=FakeEngine(), transport=transport) as session:
        tracemalloc.start()
        await session.idle(60)
        before, _ = tracemalloc.get_traced_memory()
        await session.idle(540)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before < 100_000
        result = await session.say(counted(1), sample_rate=RATE)
        stats = session.stats()
    assert result.played_s == 1
    assert set(stats.fps_per_minute) == {24.0}
    assert stats.worst_minute_fps == 24
    assert (stats.num_stalls, stats.late_frames.total, stats.missed_chunks.total) == (0, 0, 0)


@in_virtual_time
async def test_one_hour_has_the_exact_number_of_frames_and_no_skew() -> None:
    """On a noisy engine: steps of 2 to 40 ms, and one turn of speech a minute."""
    noise = random.Random(1)
    engine = FakeEngine(step_s=lambda _: noise.uniform(0.002, 0.040))
    transport = RecordingTransport(keep=1)
    async with AvatarSession("any", engine=engine, transport=transport) as session:
        start = asyncio.get_running_loop().time()
        for minute in range(60):
            await session.say(counted(2), sample_rate=RATE)
            await session.idle(start + (minute + 1) * 60 - asyncio.get_running_loop().time())
        stats = session.stats()
        [sent] = transport.sent
    assert stats.num_stalls == 0
    assert abs(stats.num_frames - 86_400) <= 1
    assert sent.at - start == pytest.approx(sent.frame.pts, abs=1e-6), "an absolute schedule"
    assert stats.skew_s == 0
    assert stats.lateness_max_ms < 1e-3
    assert stats.worst_minute_fps == pytest.approx(24, abs=1 / 60)


@in_virtual_time
async def test_an_engine_at_90_percent_stalls_picture_and_sound_together() -> None:
    engine = FakeEngine(step_s=1 / 24 / 0.9)
    transport = RecordingTransport()
    async with AvatarSession("any", engine=engine, transport=transport) as session:
        result = await session.say(counted(20), sample_rate=RATE)
        stats = session.stats()
    sound = transport.sound(1)
    assert np.array_equal(sound, counted(20)), "nothing is skipped or doubled"
    assert (result.played_s, result.interrupted) == (20.0, False)
    assert in_step(transport)
    assert result.stalls > 0
    assert stats.num_stalls >= result.stalls
    assert stats.missed_chunks.generate == stats.missed_chunks.total > 0
    spoken = [sent.at for sent in transport.sent if sent.frame.turn_id == 1]
    took_s = spoken[-1] - spoken[0] + 1 / 24
    assert took_s == pytest.approx(20 / 0.9, rel=0.03), "as fast as the engine"
    assert took_s == pytest.approx(20 + result.stalled_s, abs=0.05)
    waits = np.diff(spoken)
    assert (waits > 1.5 / 24).sum() <= 30, "pauses are few and whole, not between all syllables"


@pytest.mark.parametrize("stall_s", [0.1, 0.25, 0.4, 1.0])
@in_virtual_time
async def test_after_a_stall_picture_and_sound_are_in_step(
    open_stage: OpenStage, stall_s: float
) -> None:
    quick = 0.015
    script = {60: stall_s + 0.2}  # a pipeline of 125 to 333 ms hides part of it

    async with open_stage(step_s=lambda n: script.get(n, quick), decode_s=0.0) as stage:
        result = await stage.session.say(counted(15), sample_rate=RATE)
        stats = stage.session.stats()
    assert np.array_equal(stage.transport.sound(1), counted(15))
    assert in_step(stage.transport)
    assert stats.skew_s == 0
    gaps = np.diff([sent.at for sent in stage.transport.sent]) * 24
    stalled = round(stats.stalled_s * 24)
    assert gaps.max() == pytest.approx(1 + stalled if stats.num_stalls == 1 else 1, abs=0.25)
    assert stats.num_stalls == result.stalls
    if stall_s >= 0.25:
        assert stats.num_stalls == stats.missed_chunks.generate == 1
    # Back on the one grid: every frame after it left at start + (index + stalled) / 24.
    last = stage.transport.sent[-1]
    start = stage.transport.sent[0].at
    assert last.at - start == pytest.approx((last.frame.index + stalled) / 24, abs=1e-6)


@in_virtual_time
async def test_a_slow_decoder_is_named_as_the_cause() -> None:
    engine = FakeEngine(
        step_s=0.05, decode_s=0.4, frames_per_chunk=4, pipeline_depth=2, expected_step_s=0.05
    )
    async with AvatarSession("any", engine=engine, transport=RecordingTransport()) as session:
        await session.idle(10)
        causes = session.stats().missed_chunks
    assert causes.decode == causes.total > 0


@in_virtual_time
async def test_a_reader_that_sleeps_goes_on_live_in_bounded_memory(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(keep=1)) as stage:
        reader = stage.session.frames()
        frames = [await anext(reader) for _ in range(24)]
        await stage.session.say(counted(30), sample_rate=RATE)
        newest = stage.transport.sent[-1].frame.index
        after = [await anext(reader) for _ in range(24)]
        stats = stage.session.stats()
    indices = [frame.index for frame in after]
    assert indices[0] >= newest - 12, "what is old is gone"
    assert indices == list(range(indices[0], indices[0] + 24)), "live from there on"
    assert stats.reader_dropped == indices[0] - frames[-1].index - 1


@in_virtual_time
async def test_a_slow_reader_is_named_as_the_cause() -> None:
    async with AvatarSession("any", engine=FakeEngine()) as session:
        reader = session.frames()
        for _ in range(100):
            await anext(reader)
            await asyncio.sleep(0.060)
        stats = session.stats()
    assert stats.late_frames.consumer == stats.late_frames.total > 50
    assert stats.reader_dropped > 0
    assert stats.num_stalls == 0, "the timeline does not wait for a reader"


@in_virtual_time
async def test_a_slow_transport_loses_the_oldest_and_is_named(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(send_s=0.1)) as stage:
        await stage.session.idle(10)
        stats = stage.session.stats()
    assert stats.transport_dropped > 100
    assert stats.late_frames.consumer == stats.late_frames.total > 50
    assert stats.num_stalls == 0
    indices = [frame.index for frame in stage.transport.frames]
    assert indices == sorted(set(indices))


async def test_a_held_gil_is_reported_as_a_blocked_loop() -> None:
    """Real time: another thread holds the GIL for 50 ms at a time."""
    stop = threading.Event()
    sleep_holding_gil = ctypes.PyDLL(None).usleep

    def hog() -> None:
        while not stop.is_set():
            sleep_holding_gil(50_000)
            time.sleep(0.05)

    thread = threading.Thread(target=hog)
    transport = RecordingTransport()
    async with AvatarSession("any", engine=FakeEngine(), transport=transport) as session:
        thread.start()
        try:
            result = await session.say(counted(2), sample_rate=RATE)
        finally:
            stop.set()
            thread.join()
        stats = session.stats()
    assert stats.late_frames.blocked_loop > 0
    assert stats.lateness_max_ms > 10
    assert np.array_equal(transport.sound(1), counted(2))
    assert (result.played_s, stats.skew_s) == (2.0, 0.0)


def test_percentiles_are_right_to_two_percent() -> None:
    histogram = Histogram()
    assert histogram.percentile(50) == 0
    for ms in range(1, 1001):
        histogram.add(ms / 1e3)
    histogram.add(0.0)
    assert histogram.percentile(50) == pytest.approx(0.5, rel=0.03)
    assert histogram.percentile(99) == pytest.approx(0.99, rel=0.03)
    assert histogram.percentile(100) == histogram.max_s == 1.0
    assert histogram.percentile(0.01) == 0.0


def test_a_bad_minute_stays_the_worst() -> None:
    stats = StatsRecorder()
    for minute in range(200):
        for n in range(12 if minute == 3 else 24):
            stats.left(minute * 60 + n, 1_000)
    snapshot = stats.snapshot()
    assert snapshot.worst_minute_fps == 0.2
    assert len(snapshot.fps_per_minute) == 120
    assert min(snapshot.fps_per_minute) == 0.4
