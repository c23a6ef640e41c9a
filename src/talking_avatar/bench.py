"""Measures live sessions on this machine, in real time: what ``talking-avatar bench`` does.

Takes numbers of sessions, seconds, turns. Gives frozen reports. Never prints, never asserts.

    await run_sessions(3, seconds=60, encode="h264")   # how many a machine holds, and at what cost
    await run_turns(100)                               # say() to the first frame of that turn
    await run_soak(minutes=20)                         # barge-ins for hours: drift, misses, memory
"""

from __future__ import annotations

import asyncio
import random
import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt

from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.config import EngineConfig
from talking_avatar.engine import open_engine
from talking_avatar.engine.base import FPS, SAMPLE_RATE, Photo
from talking_avatar.errors import AtCapacity
from talking_avatar.file_transport import FileTransport
from talking_avatar.media import decode_file
from talking_avatar.session import AvatarSession
from talking_avatar.stats import SessionStats
from talking_avatar.transport import Transport
from talking_avatar.types import Frame

Encode = Literal["none", "h264"]
_WARMUP_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsReport:
    """Several live sessions in one process.

    Attributes:
        num_sessions: That ran.
        refusals: Why others were refused; one text each.
        seconds: Measured, after a warm-up.
        cores: CPU seconds of the whole process per second.
        cores_per_session: Their share.
        fps: Of each session over the measured time.
        late_frames, missed_chunks, num_stalls: Of each session over the measured time.
        lateness_p99_ms: Of each session.
        loop_busy_max_ms: The longest CPU time that one callback held the event loop.
        loop_busy_share: Share of its time that the event loop computed.
    """

    num_sessions: int
    refusals: tuple[str, ...]
    seconds: float
    cores: float
    cores_per_session: float
    fps: tuple[float, ...]
    late_frames: tuple[int, ...]
    missed_chunks: tuple[int, ...]
    num_stalls: tuple[int, ...]
    lateness_p99_ms: tuple[float, ...]
    loop_busy_max_ms: float
    loop_busy_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsReport:
    """Starts of turns at random phases of the timeline.

    Attributes:
        num_turns: Measured.
        p50_ms, p95_ms, max_ms: `say` with speech at hand to the turn's first frame.
        num_stalls: Of the session meanwhile.
    """

    num_turns: int
    p50_ms: float
    p95_ms: float
    max_ms: float
    num_stalls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """One session for long, talking, interrupted and idle at random.

    Attributes:
        minutes: How long.
        num_barge_ins: Calls of `interrupt` while a turn sounded.
        sound_after_max_ms: The longest from `interrupt` to the end of the cut turn's last sample.
        leaked_samples: Samples of speech handed over after an interruption; 0 by construction.
        barge_in_stalls: Stalls from an interruption to the next turn, 0.1 to 0.6 s later; those of
            a busy machine included, of which ``stats.num_stalls`` has all.
        rss_slope_mb_per_hour: Of memory after the first minute (or quarter, if that is less).
        rss_mb: Of memory at the end.
        num_tasks_left, num_threads_left: At the end beyond those at the beginning.
        stats: Of the session.
    """

    minutes: float
    num_barge_ins: int
    sound_after_max_ms: float
    leaked_samples: int
    barge_in_stalls: int
    rss_slope_mb_per_hour: float
    rss_mb: float
    num_tasks_left: int
    num_threads_left: int
    stats: SessionStats


@dataclass(slots=True)
class LoopWatch:
    """How long callbacks held the event loop, in CPU seconds of its thread."""

    max_s: float = 0.0
    total_s: float = 0.0
    _started: float = field(default_factory=time.perf_counter)

    @property
    def share(self) -> float:
        """Of the time since the watch began."""
        return self.total_s / (time.perf_counter() - self._started)


@contextmanager
def watching_the_loop() -> Iterator[LoopWatch]:
    """Watch every callback of asyncio's own loop; CPU time, so that a busy machine adds nothing."""
    watch, run = LoopWatch(), Handle._run

    def timed(handle: Handle) -> None:
        begin = time.thread_time()
        run(handle)
        took = time.thread_time() - begin
        watch.total_s += took
        watch.max_s = max(watch.max_s, took)

    Handle._run = timed  # type: ignore[assignment, method-assign]
    try:
        yield watch
    finally:
        Handle._run = run  # type: ignore[method-assign]


async def run_sessions(
    num: int,
    *,
    seconds: float = 30.0,
    encode: Encode = "h264",
    engine: str | EngineConfig = "portrait",
    photo: Photo | None = None,
    checks_capacity: bool = True,
) -> SessionsReport:
    """Run live sessions side by side, each talking most of the time.

    Args:
        num: How many to start, one after the other.
        seconds: How long to measure once all run.
        encode: What becomes of the frames: H.264 and AAC in a temporary file, or nothing.
        engine: Shared by all.
        photo: Of all; None: the bundled portrait.
        checks_capacity: Whether sessions that the cores do not hold are refused.
    """
    speech = await asyncio.to_thread(decode_file, speech_path())
    refusals = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        opened = await open_engine(engine)
        stack.push_async_callback(opened.aclose)
        talkers = await stack.enter_async_context(asyncio.TaskGroup())
        sessions: list[AvatarSession] = []
        for number in range(num):
            path = Path(folder, f"{number}.mp4")
            session = AvatarSession(
                portrait_path() if photo is None else photo,
                engine=opened,
                transport=FileTransport(path) if encode == "h264" else _Discard(),
                pixel_format="i420" if encode == "h264" else "rgb24",
                seed=number,
                checks_capacity=checks_capacity,
            )
            try:
                await stack.enter_async_context(session)
            except AtCapacity as refusal:
                refusals.append(str(refusal))
                continue
            sessions.append(session)
            stack.callback(talkers.create_task(_talk(session, speech, number)).cancel)
            await asyncio.sleep(_WARMUP_S)
        return await _measure(sessions, seconds, tuple(refusals))


async def _measure(
    sessions: list[AvatarSession], seconds: float, refusals: tuple[str, ...]
) -> SessionsReport:
    before = [session.stats() for session in sessions]
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    with watching_the_loop() as watch:
        await asyncio.sleep(seconds)
        busy_share = watch.share
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    after = [session.stats() for session in sessions]
    pairs = list(zip(before, after, strict=True))
    return SessionsReport(
        num_sessions=len(sessions),
        refusals=refusals,
        seconds=wall_s,
        cores=cpu_s / wall_s,
        cores_per_session=cpu_s / wall_s / max(1, len(sessions)),
        fps=tuple((b.num_frames - a.num_frames) / (b.uptime_s - a.uptime_s) for a, b in pairs),
        late_frames=tuple(b.late_frames.total - a.late_frames.total for a, b in pairs),
        missed_chunks=tuple(b.missed_chunks.total - a.missed_chunks.total for a, b in pairs),
        num_stalls=tuple(b.num_stalls - a.num_stalls for a, b in pairs),
        lateness_p99_ms=tuple(stats.lateness_p99_ms for stats in after),
        loop_busy_max_ms=watch.max_s * 1e3,
        loop_busy_share=busy_share,
    )


async def run_turns(
    num: int = 100,
    *,
    speech_s: float = 0.3,
    engine: str | EngineConfig = "portrait",
    photo: Photo | None = None,
) -> TurnsReport:
    """Start short turns at random phases, and measure `say` to the first frame of each."""
    speech = await asyncio.to_thread(decode_file, speech_path())
    length = round(speech_s * SAMPLE_RATE)
    dice = random.Random(1)
    latencies = []
    async with AvatarSession(
        portrait_path() if photo is None else photo, engine=engine, transport=_Discard()
    ) as session:
        await session.idle(1)
        for _ in range(num):
            await asyncio.sleep(dice.uniform(0.1, 0.3))
            start = dice.randrange(len(speech) - length)
            result = await session.say(speech[start : start + length], sample_rate=SAMPLE_RATE)
            latencies.append((result.first_frame_s or 0.0) * 1e3)
        num_stalls = session.stats().num_stalls
    p50, p95 = np.percentile(latencies, [50, 95])
    return TurnsReport(
        num_turns=num,
        p50_ms=float(p50),
        p95_ms=float(p95),
        max_ms=max(latencies),
        num_stalls=num_stalls,
    )


async def run_soak(
    minutes: float = 20.0,
    *,
    engine: str | EngineConfig = "portrait",
    photo: Photo | None = None,
) -> SoakReport:
    """Talk, barge in at random times, and idle; about 50 barge-ins a minute."""
    import psutil  # type: ignore[import-untyped]  # a tool of the dev extra: nothing but this measurement needs it

    speech = await asyncio.to_thread(decode_file, speech_path())
    warm_up_h = min(1.0, minutes / 4) / 60
    process, dice, listener = psutil.Process(), random.Random(1), _Listener()
    async with AvatarSession(
        portrait_path() if photo is None else photo, engine=engine, transport=listener
    ) as session:
        await session.idle(1)
        num_tasks, num_threads = len(asyncio.all_tasks()), process.num_threads()
        begin = time.monotonic()
        rss: list[tuple[float, float]] = []
        num_barge_ins = num_stalls = 0
        while (at := time.monotonic() - begin) < minutes * 60:
            rss.append((at / 3600, process.memory_info().rss / 1e6))
            interrupted, stalls_before = await _barge_in(session, listener, speech, dice)
            await session.idle(dice.uniform(0.1, 0.6))
            num_barge_ins += interrupted
            num_stalls += session.stats().num_stalls - stalls_before
        stats = session.stats()
        tasks_left = len(asyncio.all_tasks()) - num_tasks
        threads_left = process.num_threads() - num_threads
    return SoakReport(
        minutes=(time.monotonic() - begin) / 60,
        num_barge_ins=num_barge_ins,
        sound_after_max_ms=listener.sound_after_max_s * 1e3,
        leaked_samples=listener.leaked_samples,
        barge_in_stalls=num_stalls,
        rss_slope_mb_per_hour=_slope([point for point in rss if point[0] > warm_up_h]),
        rss_mb=rss[-1][1],
        num_tasks_left=tasks_left,
        num_threads_left=threads_left,
        stats=stats,
    )


async def _barge_in(
    session: AvatarSession,
    listener: _Listener,
    speech: npt.NDArray[np.float32],
    dice: random.Random,
) -> tuple[bool, int]:
    """Give whether a turn was cut, and the stalls there had been when it was."""
    saying = asyncio.create_task(session.say(speech, sample_rate=SAMPLE_RATE))
    await asyncio.sleep(dice.uniform(0.0, 1.5))
    stalls = session.stats().num_stalls
    listener.interrupted_at = asyncio.get_running_loop().time()
    await session.interrupt()
    return (await saying).interrupted, stalls


def _slope(points: list[tuple[float, float]]) -> float:
    if len(points) < 3:
        return 0.0
    hours, values = zip(*points, strict=True)
    return float(np.polyfit(hours, values, 1)[0])


async def _talk(session: AvatarSession, speech: npt.NDArray[np.float32], seed: int) -> None:
    """Speak, pause, speak, until cancelled."""
    dice = random.Random(seed)
    while True:
        start = dice.randrange(len(speech) // 2)
        await session.say(speech[start : start + 3 * SAMPLE_RATE], sample_rate=SAMPLE_RATE)
        await session.idle(dice.uniform(0.2, 1.0))


class _Discard(Transport):
    """Takes frames and keeps none."""

    async def send(self, frame: Frame) -> None:
        pass


class _Listener(Transport):
    """Hears when the sound of a turn that was cut ends."""

    def __init__(self) -> None:
        self.interrupted_at = -1.0
        self.sound_after_max_s = 0.0
        self.leaked_samples = 0
        self._last_speech_at = -1.0

    async def send(self, frame: Frame) -> None:
        now = asyncio.get_running_loop().time()
        if frame.speaking:
            self._last_speech_at = now
        elif self._last_speech_at >= 0 and self.interrupted_at >= 0:
            # The first silent frame after an interruption: the sound ended when it began.
            ended = self._last_speech_at + 1 / FPS
            self.sound_after_max_s = max(self.sound_after_max_s, ended - self.interrupted_at)
            if self._last_speech_at > self.interrupted_at:
                self.leaked_samples += SAMPLE_RATE // FPS
            self.interrupted_at = self._last_speech_at = -1.0
