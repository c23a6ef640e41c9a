"""The portrait engine keeps the seam's promises: order, limits, rewind, failure, threads, loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from talking_avatar.assets import portrait_path
from talking_avatar.config import PortraitConfig
from talking_avatar.engine import open_engine
from talking_avatar.engine._tickets import ThreadTicket
from talking_avatar.engine.base import Controls, EngineInfo, FrameBlock, SpeechWindow
from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.stream import NUM_SNAPSHOTS, PortraitStream
from talking_avatar.errors import (
    ChunkDropped,
    EngineBusy,
    EngineError,
    EngineFailed,
    NoFace,
)

DEPTH = 3
INFO = EngineInfo(
    name="portrait",
    width=4,
    height=2,
    frames_per_chunk=1,
    lookahead_samples=500,
    pipeline_depth=DEPTH,
    step_s=0.01,
)


@dataclass
class CountingPerformer:
    """Its memory is the history of all it was given, so that a wrong rewind shows."""

    history: tuple[tuple[int, float], ...] = ()

    def perform(self, window: SpeechWindow, controls: Controls) -> tuple[FaceState, ...]:
        self.history = (*self.history, (window.chunk_index, float(window.samples[0])))
        return (FaceState(yaw=float(hash(self.history) % 251)),)

    def snapshot(self) -> Any:
        return self.history

    def restore(self, snapshot: Any) -> None:
        self.history = snapshot


class FlatRenderer:
    """Gives the performer's number as an image; waits at a gate when it has one."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Semaphore(0)
        self.threads: set[int] = set()
        self.fail_at: float | None = None
        self.failures: list[Exception] = []

    def render(self, state: FaceState, out: npt.NDArray[np.uint8]) -> None:
        self.began.release()
        assert self.gate.wait(20)
        self.threads.add(threading.get_ident())
        if self.failures:
            raise self.failures.pop(0)
        out[:] = int(state.yaw)


def window(chunk: int, level: float = 0.0) -> SpeechWindow:
    return SpeechWindow(chunk, np.full(1_500, level, np.float32), 1_500, speaking=True)


@pytest.fixture
def performer() -> CountingPerformer:
    return CountingPerformer()


@pytest.fixture
def renderer() -> FlatRenderer:
    return FlatRenderer()


@pytest.fixture
async def stream(
    performer: CountingPerformer, renderer: FlatRenderer
) -> AsyncIterator[PortraitStream]:
    stream = PortraitStream(performer, renderer, INFO, num_threads=1)
    yield stream
    renderer.gate.set()
    await stream.aclose()
    assert not worker_threads()


def worker_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "talking-avatar-portrait"]


async def make(stream: PortraitStream, chunk: int, level: float = 0.0) -> int:
    block = await stream.submit(window(chunk, level), Controls()).frames()
    assert block.chunk_index == chunk
    return int(block.images[0, 0, 0, 0])


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


# --- order and limits


async def test_frames_come_in_order_from_another_thread(
    stream: PortraitStream, renderer: FlatRenderer
) -> None:
    tickets = [stream.submit(window(i), Controls()) for i in range(DEPTH)]
    assert [ticket.chunk_index for ticket in tickets] == [0, 1, 2]
    blocks = [await ticket.frames() for ticket in tickets]
    assert [block.chunk_index for block in blocks] == [0, 1, 2]
    assert all(block.images.shape == (1, 2, 4, 3) for block in blocks)
    assert all(block.generate_s > 0 and block.decode_s == 0 for block in blocks)
    assert len(renderer.threads) == 1
    assert threading.get_ident() not in renderer.threads


async def test_no_more_than_the_pipeline_holds(
    stream: PortraitStream, renderer: FlatRenderer
) -> None:
    renderer.gate.clear()
    tickets = [stream.submit(window(i), Controls()) for i in range(DEPTH)]
    with pytest.raises(EngineBusy, match="3 chunks are outstanding"):
        stream.submit(window(DEPTH), Controls())
    renderer.gate.set()
    await tickets[0].frames()
    await stream.submit(window(DEPTH), Controls()).frames()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (window(1), "chunk 1 submitted, 0 expected"),
        (SpeechWindow(0, np.zeros(1_499, np.float32), 1_499, True), r"\(1499,\), not \(1500,\)"),
        (SpeechWindow(0, np.zeros(1_500, np.float32), 999, True), "num_known is 999, not 1000"),
        (SpeechWindow(0, np.zeros(1_500, np.float32), 1_501, True), "1501, not 1000 to 1500"),
    ],
)
async def test_wrong_windows_are_refused(
    stream: PortraitStream, bad: SpeechWindow, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stream.submit(bad, Controls())
    await make(stream, 0)


# --- rewind


async def test_rewind_and_replay_give_the_same_frames(stream: PortraitStream) -> None:
    first = [await make(stream, i, level=i) for i in range(8)]
    await stream.rewind(3)
    assert [await make(stream, i, level=i) for i in range(4, 8)] == first[4:]
    await stream.rewind(3)
    other = [await make(stream, i, level=-i) for i in range(4, 8)]
    assert other != first[4:]
    await stream.rewind(-1)
    assert [await make(stream, i, level=i) for i in range(8)] == first


async def test_rewind_drops_queued_running_and_finished_chunks(
    stream: PortraitStream, renderer: FlatRenderer
) -> None:
    await make(stream, 0)
    expected = await make(stream, 1, level=1.0)
    await stream.rewind(0)
    finished = stream.submit(window(1, level=2.0), Controls())
    await finished.frames()
    await in_thread(lambda: [renderer.began.acquire() for _ in range(3)])
    renderer.gate.clear()
    running, queued = (stream.submit(window(i), Controls()) for i in (2, 3))
    await in_thread(renderer.began.acquire)
    waiting = asyncio.create_task(running.frames())
    await asyncio.sleep(0)
    await stream.rewind(0)  # returns although the frame in work has not ended
    for ticket in (finished, running, queued):
        with pytest.raises(ChunkDropped, match="rewound to chunk 0"):
            await ticket.frames()
    with pytest.raises(ChunkDropped):
        await waiting
    fresh = [stream.submit(window(i, level=float(i)), Controls()) for i in (1, 2, 3)]
    renderer.gate.set()
    block = await fresh[0].frames()
    assert block.images[0, 0, 0, 0] == expected
    for ticket in fresh[1:]:
        await ticket.frames()


async def test_rewind_to_a_chunk_that_is_not_made_yet(
    stream: PortraitStream, renderer: FlatRenderer
) -> None:
    first = [await make(stream, i) for i in range(3)]
    await stream.rewind(-1)
    renderer.gate.clear()
    kept, _, dropped = [stream.submit(window(i), Controls()) for i in range(3)]
    await stream.rewind(1)
    again = stream.submit(window(2), Controls())
    renderer.gate.set()
    assert (await kept.frames()).images[0, 0, 0, 0] == first[0]
    assert (await again.frames()).images[0, 0, 0, 0] == first[2]
    with pytest.raises(ChunkDropped):
        await dropped.frames()


async def test_how_far_back(stream: PortraitStream) -> None:
    num = NUM_SNAPSHOTS + 20
    made = [await make(stream, i) for i in range(num)]
    with pytest.raises(ValueError, match=rf"cannot rewind to chunk {num}"):
        await stream.rewind(num)
    with pytest.raises(ValueError, match="cannot rewind to chunk 3"):
        await stream.rewind(3)
    guaranteed = 2 * DEPTH + 2
    for back in range(1, 4):  # one rewind after the other, with nothing made between
        await stream.rewind(num - 1 - back * guaranteed)
    chunk = num - 3 * guaranteed
    assert await make(stream, chunk) == made[chunk]
    assert len(stream._snapshots) <= NUM_SNAPSHOTS + 1


# --- failure


async def test_a_failure_reaches_every_waiter_and_a_rewind_mends_it(
    stream: PortraitStream, renderer: FlatRenderer
) -> None:
    first = [await make(stream, i) for i in range(3)]
    await stream.rewind(0)
    renderer.failures = [ZeroDivisionError("too thin")]
    tickets = [stream.submit(window(i), Controls()) for i in (1, 2)]
    raised = []
    for ticket in tickets:
        for _ in range(2):
            with pytest.raises(EngineFailed, match="too thin") as caught:
                await ticket.frames()
            raised.append(caught.value)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert len({id(error) for error in raised}) == 4
    with pytest.raises(EngineFailed):
        await make(stream, 3)
    await stream.rewind(2)  # a chunk that failed has no state to go on from
    with pytest.raises(EngineFailed):
        await make(stream, 3)
    await stream.rewind(0)
    assert [await make(stream, i) for i in (1, 2)] == first[1:]


# --- waiting


async def test_many_waiters_and_cancelled_ones(
    stream: PortraitStream, renderer: FlatRenderer
) -> None:
    renderer.gate.clear()
    ticket = stream.submit(window(0), Controls())
    waiters = [asyncio.create_task(ticket.frames()) for _ in range(5)]
    await asyncio.sleep(0)
    waiters[1].cancel()
    waiters[3].cancel()
    renderer.gate.set()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [isinstance(r, asyncio.CancelledError) for r in results] == [0, 1, 0, 1, 0]
    assert results[0] is results[2] is results[4]
    assert await ticket.frames() is results[0]  # the work went on and can still be had


def test_a_loop_that_closed_does_not_disturb_the_others() -> None:
    ticket = ThreadTicket(7)
    abandoned = asyncio.new_event_loop()
    waiting = abandoned.create_task(ticket.frames())
    abandoned.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    abandoned.run_until_complete(asyncio.gather(waiting, return_exceptions=True))

    half_done = asyncio.new_event_loop()
    coroutine = ticket.frames()
    task = half_done.create_task(coroutine)
    half_done.run_until_complete(asyncio.sleep(0))
    half_done.close()
    abandoned.close()
    block = FrameBlock(7, np.zeros((1, 2, 4, 3), np.uint8), 0.0)
    thread = threading.Thread(target=ticket.settle, args=(block,))
    thread.start()
    thread.join()
    assert asyncio.run(ticket.frames()) is block
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()


async def test_an_outcome_stays_unless_it_is_dropped() -> None:
    ticket = ThreadTicket(0)
    block = FrameBlock(0, np.zeros((1, 2, 4, 3), np.uint8), 0.0)
    ticket.settle(block)
    ticket.settle(EngineFailed("late"))
    assert await ticket.frames() is block
    ticket.drop("a test")
    with pytest.raises(ChunkDropped, match="chunk 0 was dropped: a test"):
        await ticket.frames()


# --- the end


async def test_closing_ends_thread_and_tickets(
    performer: CountingPerformer, renderer: FlatRenderer
) -> None:
    stream = PortraitStream(performer, renderer, INFO, num_threads=1)
    renderer.gate.clear()
    tickets = [stream.submit(window(i), Controls()) for i in range(DEPTH)]
    await in_thread(renderer.began.acquire)
    closing = [asyncio.create_task(stream.aclose()) for _ in range(2)]
    await asyncio.sleep(0)
    renderer.gate.set()
    await asyncio.gather(*closing)
    await stream.aclose()
    assert not worker_threads()
    for ticket in tickets:
        with pytest.raises(ChunkDropped, match="the stream was closed"):
            await ticket.frames()
    with pytest.raises(EngineError, match="the stream is closed"):
        stream.submit(window(3), Controls())
    with pytest.raises(EngineError, match="the stream is closed"):
        await stream.rewind(0)


async def test_a_cancelled_close_still_ends_the_thread(renderer: FlatRenderer) -> None:
    stream = PortraitStream(CountingPerformer(), renderer, INFO, num_threads=1)
    renderer.gate.clear()
    stream.submit(window(0), Controls())
    closing = asyncio.create_task(stream.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    renderer.gate.set()
    await stream.aclose()
    assert not worker_threads()


async def test_a_thousand_streams_leave_nothing(renderer: FlatRenderer) -> None:
    before = threading.active_count()
    for i in range(1_000):
        stream = PortraitStream(CountingPerformer(), renderer, INFO, num_threads=1)
        if i % 3 == 0:
            stream.submit(window(0), Controls())
        await stream.aclose()
    assert threading.active_count() == before
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is PortraitStream and o is not stream]


async def test_opencv_threads_are_the_callers_again(performer: CountingPerformer) -> None:
    seen = []

    class Looks(FlatRenderer):
        def render(self, state: FaceState, out: npt.NDArray[np.uint8]) -> None:
            seen.append(cv2.getNumThreads())
            super().render(state, out)

    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        streams = [PortraitStream(CountingPerformer(), Looks(), INFO, num_threads=1) for _ in "ab"]
        for i in range(20):
            await asyncio.gather(*(make(stream, i) for stream in streams))
        for stream in streams:
            await stream.aclose()
        assert set(seen) == {1}
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


# --- the whole engine


def real_window(info: EngineInfo, chunk: int) -> SpeechWindow:
    num = info.chunk_samples + info.lookahead_samples
    time = np.arange(num) / 24_000 + chunk / 24
    voice = 0.3 * np.sin(2 * np.pi * 140 * time) * (1 + np.sin(2 * np.pi * 3 * time))
    return SpeechWindow(chunk, voice.astype(np.float32), num, speaking=True)


async def render(engine: Any, avatar: Any, seed: int, num: int) -> list[npt.NDArray[np.uint8]]:
    stream = await engine.open_stream(avatar, seed=seed)
    frames = []
    for i in range(num):
        block = await stream.submit(real_window(engine.info, i), Controls()).frames()
        frames.append(block.images[0])
    await stream.aclose()
    return frames


async def test_the_engine_from_photo_to_frames() -> None:
    engine = await open_engine(PortraitConfig(width=176, height=272))
    info = engine.info
    assert (info.name, info.width, info.height) == ("portrait", 176, 272)
    assert info.frames_per_chunk == 1
    assert info.lookahead_samples <= 2_880
    assert info.controls == {"listening", "blink", "gaze", "head", "mouth_gain", "emotion"}
    assert not any(device.is_gpu for device in info.devices)
    avatar = await engine.prepare(portrait_path())
    assert avatar.warnings == ()
    frames = await render(engine, avatar, seed=1, num=12)
    assert all(f.shape == (272, 176, 3) and f.dtype == np.uint8 for f in frames)
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 10, "it moves"

    # Same seed and windows: the same frames, bit by bit, also of another engine, also after a
    # rewind; another seed: others.
    other = await open_engine(PortraitConfig(width=176, height=272))
    again = await render(other, await other.prepare(portrait_path()), seed=1, num=12)
    np.testing.assert_array_equal(again, frames)
    assert not np.array_equal(await render(engine, avatar, seed=2, num=12), frames)
    stream = await engine.open_stream(avatar, seed=1)
    for i in range(10):
        await stream.submit(real_window(info, i), Controls()).frames()
    await stream.rewind(4)
    for i in range(5, 12):
        block = await stream.submit(real_window(info, i), Controls()).frames()
        np.testing.assert_array_equal(block.images[0], frames[i])

    await other.aclose()
    await engine.aclose()
    await engine.aclose()
    assert not worker_threads()
    with pytest.raises(EngineError, match="the engine is closed"):
        await engine.prepare(portrait_path())


async def test_the_engine_refuses_what_is_not_its_own() -> None:
    engine = await open_engine("portrait")
    with pytest.raises(NoFace):
        await engine.prepare(np.zeros((300, 300, 3), np.uint8))
    with pytest.raises(TypeError, match="str was not prepared by a portrait engine"):
        await engine.open_stream("face.jpg")  # type: ignore[arg-type]
    small = await open_engine(PortraitConfig(width=176, height=272))
    avatar = await small.prepare(portrait_path())
    with pytest.raises(ValueError, match="prepared for 176x272, this engine makes 704x1088"):
        await engine.open_stream(avatar)
    await engine.aclose()
    await small.aclose()


async def test_closed_streams_are_forgotten_and_open_ones_are_closed() -> None:
    engine = await open_engine(PortraitConfig(width=176, height=272))
    avatar = await engine.prepare(portrait_path())
    for seed in range(50):
        stream = await engine.open_stream(avatar, seed=seed)
        stream.submit(real_window(engine.info, 0), Controls())
        await stream.aclose()
    del stream
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is PortraitStream]
    left_open = await engine.open_stream(avatar)
    ticket = left_open.submit(real_window(engine.info, 0), Controls())
    await engine.aclose()
    assert not worker_threads()
    with pytest.raises(EngineError, match="the stream is closed"):
        left_open.submit(real_window(engine.info, 1), Controls())
    with pytest.raises(ChunkDropped):
        await ticket.frames()


async def test_two_characters_at_once_do_not_disturb_each_other() -> None:
    engine = await open_engine(PortraitConfig(width=176, height=272))
    avatars = await asyncio.gather(*(engine.prepare(portrait_path()) for _ in range(3)))
    alone = [await render(engine, avatars[0], seed, num=6) for seed in (1, 2)]
    together = await asyncio.gather(*(render(engine, avatars[0], seed, num=6) for seed in (1, 2)))
    other = await render(engine, avatars[2], seed=1, num=6)
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(other, alone[0])
    await engine.aclose()
