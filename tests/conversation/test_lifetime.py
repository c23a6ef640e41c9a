"""Beginning and end: cases 31 to 34, and the owner-task rule."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import psutil
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from talking_avatar.engine.base import Device, Photo
from talking_avatar.errors import (
    EngineFailed,
    NoFace,
    SessionClosed,
    SessionError,
    TransportClosed,
)
from talking_avatar.session import AvatarSession
from talking_avatar.testing import (
    FakeAvatar,
    FakeEngine,
    RecordingTransport,
    counted,
    in_virtual_time,
)

RATE = 24_000
OpenStage = Any


# -- the owner task


@in_virtual_time
async def test_one_task_starts_it_and_another_closes_it() -> None:
    session = AvatarSession("any", engine=FakeEngine(), transport=RecordingTransport())
    await asyncio.create_task(session.start())
    saying = asyncio.create_task(session.say(counted(5), sample_rate=RATE))
    await asyncio.sleep(1)
    await asyncio.gather(*(asyncio.create_task(session.aclose()) for _ in range(3)))
    result = await saying
    assert result.interrupted
    assert 0.8 < result.played_s <= 1
    await session.aclose()
    with pytest.raises(SessionError, match="starts once"):
        await session.start()


@pytest_asyncio.fixture
async def session() -> AsyncIterator[AvatarSession]:
    """Start in the task of a fixture, use in that of a test, close in that of the fixture."""
    async with AvatarSession("any", engine=FakeEngine(), clock="unpaced") as session:
        yield session


async def test_a_fixture_may_hold_a_session(session: AvatarSession) -> None:
    with anyio.move_on_after(5) as scope:
        assert (await session.say(counted(0.1), sample_rate=RATE)).played_s == 0.1
    assert not scope.cancelled_caught


@in_virtual_time
async def test_an_error_in_the_block_passes_and_the_session_is_closed() -> None:
    transport = RecordingTransport()
    with pytest.raises(ZeroDivisionError):
        async with AvatarSession("any", engine=FakeEngine(), transport=transport):
            raise ZeroDivisionError
    assert transport.is_closed


@in_virtual_time
async def test_an_engine_that_was_passed_in_stays_open_and_is_shared() -> None:
    engine = FakeEngine()
    transports = [RecordingTransport(), RecordingTransport()]
    async with (
        AvatarSession("a", engine=engine, transport=transports[0]) as first,
        AvatarSession("b", engine=engine, transport=transports[1]) as second,
    ):
        await asyncio.gather(
            first.say(counted(1), sample_rate=RATE),
            second.say(counted(1, sign=-1), sample_rate=RATE),
        )
    assert np.array_equal(transports[0].sound(1), counted(1))
    assert np.array_equal(transports[1].sound(1), counted(1, sign=-1))
    assert not engine.is_closed
    assert all(stream.is_closed for stream in engine.streams)


class Faceless(FakeEngine):
    async def prepare(self, photo: Photo, *, face: int | None = None) -> FakeAvatar:
        raise NoFace("no face was found")


@in_virtual_time
async def test_a_photo_that_is_refused_is_refused_by_start() -> None:
    session = AvatarSession("any", engine=Faceless())
    with pytest.raises(NoFace):
        await session.start()
    await session.aclose()


class Slow(FakeEngine):
    async def prepare(self, photo: Photo, *, face: int | None = None) -> FakeAvatar:
        await asyncio.sleep(10)
        return FakeAvatar()


@in_virtual_time
async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    for scope in (anyio.move_on_after(1), anyio.move_on_after(0)):
        session = AvatarSession("any", engine=Slow())
        with scope:
            await session.start()
        assert scope.cancelled_caught
        assert len(asyncio.all_tasks()) == 1
        await session.aclose()


@in_virtual_time
async def test_closing_while_it_starts_ends_the_start() -> None:
    session = AvatarSession("any", engine=Slow())
    starting = asyncio.create_task(session.start())
    await asyncio.sleep(1)
    await session.aclose()
    with pytest.raises(SessionClosed):
        await starting


# -- readers


@in_virtual_time
async def test_a_second_reader_is_refused_while_there_is_one() -> None:
    async with AvatarSession("any", engine=FakeEngine()) as session:
        reader = session.frames()
        with pytest.raises(SessionError, match="already has a reader"):
            session.frames()
        reader.close()
        async for frame in session.frames():
            assert frame.image.shape == (16, 16, 3)
            break
        gc.collect()
        last = session.frames()
        index = (await anext(last)).index
        with anyio.move_on_after(0):
            await anext(last)
        assert (await anext(last)).index == index + 1, "a cancelled wait loses no frame"
    rest = [frame async for frame in last]
    assert len(rest) <= 12


@in_virtual_time
async def test_an_unpaced_session_does_not_wait_for_a_reader_who_left() -> None:
    async with AvatarSession("any", engine=FakeEngine(), clock="unpaced") as session:
        reader = session.frames()
        saying = asyncio.create_task(session.say(counted(5), sample_rate=RATE))
        await anext(reader)
        await asyncio.sleep(1)
        assert not saying.done()
        del reader
        gc.collect()
        assert (await saying).played_s == 5


async def test_i420_on_request() -> None:
    engine = FakeEngine(width=32, height=16)
    async with AvatarSession("any", engine=engine, clock="unpaced", pixel_format="i420") as session:
        reader = session.frames()
        await session.idle(0.1)
        frame = await anext(reader)
    assert (frame.image.shape, frame.image.dtype) == ((24, 32), np.uint8)
    assert set(np.unique(frame.image[1:16])) == {16}, "black in limited range"


def test_what_no_session_can_be() -> None:
    for wrong in ({"clock": "fast"}, {"pixel_format": "bgr"}):
        with pytest.raises(ValueError, match="must be"):
            AvatarSession("any", **wrong)  # type: ignore[arg-type]


# -- failures


@in_virtual_time
async def test_an_engine_that_fails_in_a_turn_ends_it_and_the_session(
    open_stage: OpenStage,
) -> None:
    def script(number: int) -> float:
        if number == 40:
            raise RuntimeError("out of magic smoke")
        return 0.015

    with capture_logs() as events:
        async with open_stage(step_s=script) as stage:
            reader = stage.session.frames()
            with pytest.raises(EngineFailed, match="magic smoke") as caught:
                await stage.session.say(counted(10), sample_rate=RATE)
            assert isinstance(caught.value.__cause__, RuntimeError)
            for call in (
                stage.session.say(b"", sample_rate=RATE),
                stage.session.interrupt(),
                stage.session.idle(1),
            ):
                with pytest.raises(EngineFailed):
                    await call
            with pytest.raises(EngineFailed):
                while True:
                    await anext(reader)
        assert stage.transport.is_closed
        assert stage.stream.is_closed
    assert [event["event"] for event in events] == ["session_failed"]


@in_virtual_time
async def test_an_engine_that_fails_in_idle_ends_whoever_waits(open_stage: OpenStage) -> None:
    def script(number: int) -> float:
        if number == 40:
            raise RuntimeError
        return 0.015

    async with open_stage(step_s=script) as stage, stage.session.turn(sample_rate=RATE) as turn:
        with pytest.raises(EngineFailed):
            await turn.result()
        with pytest.raises(EngineFailed):
            await turn.push(counted(1))


@in_virtual_time
async def test_the_session_runs_on_when_its_transport_has_gone(open_stage: OpenStage) -> None:
    with capture_logs() as events:
        async with open_stage() as stage:
            await stage.session.idle(1)
            stage.transport.is_gone = True
            assert (await stage.session.say(counted(1), sample_rate=RATE)).played_s == 1
            await stage.session.interrupt()
    names = [event["event"] for event in events]
    assert names == ["session_transport_closed", "session_frames_discarded"]


class Broken(RecordingTransport):
    async def send(self, frame: Any) -> None:
        raise OSError("disk full")


class Unopenable(RecordingTransport):
    async def open(self, media: Any) -> None:
        raise TransportClosed("nobody is there")


@in_virtual_time
async def test_a_transport_that_breaks_ends_the_session(open_stage: OpenStage) -> None:
    with capture_logs():
        async with open_stage(Broken()) as stage:
            with pytest.raises(OSError, match="disk full"):
                await stage.session.say(counted(1), sample_rate=RATE)
    with pytest.raises(TransportClosed):
        async with open_stage(Unopenable()):
            pass


class Unfinished(RecordingTransport):
    async def aclose(self) -> None:
        raise OSError("the file could not be finished")


@in_virtual_time
async def test_what_fails_while_closing_is_told_to_who_closes(open_stage: OpenStage) -> None:
    with pytest.raises(OSError, match="could not be finished"):
        async with open_stage(Unfinished()) as stage:
            await stage.session.say(counted(0.5), sample_rate=RATE)
    assert stage.stream.is_closed


@in_virtual_time
async def test_a_transport_that_hangs_does_not_hold_the_close(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(send_s=1e6)) as stage:
        await stage.session.idle(1)
        at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - at <= 10


# -- what is left over


async def test_two_hundred_sessions_leave_nothing() -> None:
    process = psutil.Process()
    rss, engine = [], FakeEngine(step_s=0.001, width=128, height=128)
    num_threads = threading.active_count()
    num_files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(200):
        transport = RecordingTransport(keep=1)
        async with AvatarSession(
            "any", engine=engine, transport=transport, clock="unpaced"
        ) as session:
            await session.say(counted(0.2), sample_rate=RATE)
        rss.append(process.memory_info().rss)
        engine.streams.clear()
    assert len(asyncio.all_tasks()) == 1
    assert threading.active_count() == num_threads
    if num_files:
        assert len(os.listdir("/proc/self/fd")) == num_files
    assert max(rss[100:]) - min(rss[50:100]) < 8e6


@pytest.mark.slow
@in_virtual_time
async def test_two_hours_in_flat_memory() -> None:
    process = psutil.Process()
    engine, transport = FakeEngine(), RecordingTransport(keep=1)
    rss = []
    async with AvatarSession("any", engine=engine, transport=transport) as session:
        for _ in range(24):
            await session.say(counted(20), sample_rate=RATE)
            await session.idle(280)
            rss.append(process.memory_info().rss)
    hours = np.arange(1, len(rss)) * 300 / 3600
    slope, _ = np.polyfit(hours, np.array(rss[1:]) / 1e6, 1)
    assert slope < 1.0, f"{slope:.2f} MB an hour"


@in_virtual_time
async def test_the_meter_counts_held_gpus_and_stops_with_the_session() -> None:
    devices = (
        Device("cuda:0", "H200", "denoise"),
        Device("cuda:1", "H200", "denoise"),
        Device("cuda:2", "L40S", "decode"),
    )
    engine = FakeEngine(
        step_s=0.1, decode_s=0.05, frames_per_chunk=4, pipeline_depth=2, devices=devices
    )
    async with AvatarSession("any", engine=engine, transport=RecordingTransport()) as session:
        await session.idle(360)
        held = session.gpu_hours()
    assert held == pytest.approx(0.3, rel=2e-3)
    at_close = session.gpu_hours()
    await asyncio.sleep(100)
    assert session.gpu_hours() == at_close == pytest.approx(held, abs=3 / 3600)
    h200, l40s = session.usage().devices
    assert (h200.kind, h200.num_devices, h200.price) == ("H200", 2, None)
    assert h200.active_s == pytest.approx(2 * 360 * 0.1 * 6, rel=5e-3)
    assert l40s.active_s == pytest.approx(360 * 0.05 * 6, rel=5e-3)


@in_virtual_time
async def test_a_cpu_costs_no_gpu_hours() -> None:
    async with AvatarSession("any", engine=FakeEngine(), transport=RecordingTransport()) as session:
        await session.idle(100)
    [cpu] = session.usage().devices
    assert (session.gpu_hours(), cpu.gpu_hours) == (0.0, 0.0)
    assert cpu.held_s >= 100
    assert cpu.active_s == pytest.approx(100 * 24 * 0.015, rel=0.01)


def test_usage_is_known_after_the_loop_has_ended() -> None:
    session = AvatarSession("any", engine=FakeEngine(), clock="unpaced")

    async def main() -> None:
        async with session:
            await session.say(counted(0.1), sample_rate=RATE)

    asyncio.run(main())
    [cpu] = session.usage().devices
    assert cpu.held_s > 0
    assert session.gpu_hours() == 0.0
