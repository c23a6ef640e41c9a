"""`AvatarSession`: a photo that talks, as application code awaits it.

Everything that runs lives in one **owner task**, which holds the session's task group. `start`,
`aclose` and ``async with`` only send it messages: a session may be started in one task and closed
in another, and no cancel scope spans a yield. Cancelling a caller cancels what it asked for, never
the session.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from math import ceil
from types import TracebackType
from typing import TypedDict, Unpack

import anyio
import structlog

from talking_avatar.audio import Encoding
from talking_avatar.capacity import PROCESS_CAPACITY
from talking_avatar.config import DiffusionConfig, EngineConfig, PortraitConfig
from talking_avatar.cost import Meter, Usage
from talking_avatar.engine import open_engine
from talking_avatar.engine.base import (
    FPS,
    SAMPLE_RATE,
    Avatar,
    Emotion,
    Engine,
    EngineInfo,
    Photo,
)
from talking_avatar.errors import SessionClosed, SessionError, SessionNotStarted
from talking_avatar.session.conductor import Conductor
from talking_avatar.session.gestures import GestureName
from talking_avatar.session.outlet import FrameReader, Outlet
from talking_avatar.session.sources import Speech, pieces, rate_of
from talking_avatar.session.turn_handle import Turn
from talking_avatar.stats import SessionStats, StatsRecorder
from talking_avatar.transport import MediaInfo, Transport
from talking_avatar.turn import State
from talking_avatar.types import ClockMode, PixelFormat, Position, TurnResult

_log = structlog.stdlib.get_logger("talking_avatar.session")

CLOSE_WAIT_S = 10.0
"""How long closing waits for the transport to take the frames that it was offered: seconds of
encoding on a busy machine, and a bound for one that hangs."""


class ControlChanges(TypedDict, total=False):
    """The fields of `Controls`."""

    listening: bool
    blink: float | None
    gaze: tuple[float, float] | None
    head: tuple[float, float, float]
    mouth_gain: float
    emotion: Emotion
    emotion_strength: float


class AvatarSession:
    """A live character made of one photo.

        async with AvatarSession("face.jpg") as session:
            result = await session.say(pcm, sample_rate=24_000)

    Args:
        photo: Path, bytes or RGB array; see `Photo`.
        engine: Name of an engine, its configuration, or an open engine. The session closes what
            it opened; an engine that was passed in stays open and may serve other sessions.
        transport: Is handed every frame; opened and closed by the session.
        clock: ``"live"``: frames leave 24 times a second, idle motion between turns.
            ``"unpaced"``: time moves only while there is a turn, or `idle` was called, as fast as
            the engine works and the frames are taken; no frame is dropped.
        seed: Of the character's own motion.
        pixel_format: Layout of `Frame.image`: ``"rgb24"`` or ``"i420"``.
        face: Index of the face to take when the photo has several.
        checks_capacity: Refuse to start a live session whose rendering the cores of this process
            do not hold beside those that run; see `talking_avatar.capacity`.
    """

    def __init__(
        self,
        photo: Photo,
        *,
        engine: str | EngineConfig | Engine = "portrait",
        transport: Transport | None = None,
        clock: ClockMode = "live",
        seed: int = 0,
        pixel_format: PixelFormat = "rgb24",
        face: int | None = None,
        checks_capacity: bool = True,
    ) -> None:
        if clock not in ("live", "unpaced"):
            raise ValueError(f"clock {clock!r} must be 'live' or 'unpaced'")
        if pixel_format not in ("rgb24", "i420"):
            raise ValueError(f"pixel_format {pixel_format!r} must be 'rgb24' or 'i420'")
        self._photo = photo
        self._engine = engine
        self._transport = transport
        self._clock: ClockMode = clock
        self._seed = seed
        self._pixel_format: PixelFormat = pixel_format
        self._face = face
        self._checks_capacity = checks_capacity and clock == "live"
        self._stats = StatsRecorder()
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._has_started = False
        self._info: EngineInfo | None = None
        self._avatar: Avatar | None = None
        self._meter: Meter | None = None
        self._outlet: Outlet | None = None
        self._conductor: Conductor | None = None

    # -- lifecycle

    async def start(self) -> None:
        """Open the engine, make the character of the photo, begin the timeline.

        Returns when the first frame is ready. Cancelled, it leaves nothing behind.

        Raises:
            PhotoError: The photo cannot become a character.
            MissingDependency: The engine's extra is not installed.
            AtCapacity: The cores do not hold one more live session.
            SessionError: The session was started before; make a new one.
        """
        if self._owner is not None:
            raise SessionError("a session starts once: make a new one")
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(started), name="talking_avatar.session")
        try:
            await started
        except asyncio.CancelledError:
            self._owner.cancel()
            await self._wait_for_owner()
            raise
        except BaseException:
            await self._wait_for_owner()
            raise

    async def aclose(self) -> None:
        """End the session: cut what is being said, let the transport finish, release the engine.

        Idempotent; any task may call it, and several may at once. Never raises what ended the
        session: `say` and `frames` did.
        """
        self._closing.set()
        if self._owner is not None:
            if not self._has_started:
                self._owner.cancel()
            await self._wait_for_owner()

    async def _wait_for_owner(self) -> None:
        assert self._owner is not None
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._owner])

    async def __aenter__(self) -> AvatarSession:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _own(self, started: asyncio.Future[None]) -> None:
        """The owner task: everything the session holds is opened, runs and is closed in here."""
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                await self._run(started)
        except Exception as error:
            if not started.done():
                started.set_exception(error)
        finally:
            if not started.done():
                started.set_exception(SessionClosed("the session was closed while it started"))

    async def _open(self, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        engine = self._engine
        if isinstance(engine, (str, PortraitConfig, DiffusionConfig)):
            opened = await open_engine(engine)
            stack.push_async_callback(opened.aclose)
        else:
            opened = engine
        self._info = opened.info
        self._take_lease(stack, opened.info)
        self._meter = Meter(opened.info.devices)
        self._meter.start(loop.time())
        stack.callback(self._stop_meter)
        self._avatar = await opened.prepare(self._photo, face=self._face)
        stream = await opened.open_stream(self._avatar, seed=self._seed)
        stack.push_async_callback(stream.aclose)
        self._outlet = Outlet(self._transport, clock=self._clock, stats=self._stats, now=loop.time)
        if self._transport is not None:
            stack.push_async_callback(self._transport.aclose)
            await self._transport.open(self._media)
        self._conductor = Conductor(
            stream,
            opened.info,
            self._outlet,
            clock=self._clock,
            pixel_format=self._pixel_format,
            stats=self._stats,
            meter=self._meter,
        )

    def _take_lease(self, stack: AsyncExitStack, info: EngineInfo) -> None:
        """Hold cores while the session lives, where it is cores that render."""
        if self._checks_capacity and not any(device.is_gpu for device in info.devices):
            PROCESS_CAPACITY.admit(info.step_s / info.chunk_s, self._loop_time())
            stack.callback(lambda: PROCESS_CAPACITY.release(self._loop_time()))

    def _stop_meter(self) -> None:
        if self._meter is not None:
            self._meter.stop(asyncio.get_running_loop().time())

    @property
    def _media(self) -> MediaInfo:
        return MediaInfo(
            width=self.info.width,
            height=self.info.height,
            pixel_format=self._pixel_format,
            fps=FPS,
            sample_rate=SAMPLE_RATE,
            clock=self._clock,
        )

    async def _run(self, started: asyncio.Future[None]) -> None:
        """Run until `aclose`, the owner's cancellation, or the first thing that fails."""
        conductor, outlet = self._conductor, self._outlet
        assert conductor is not None
        assert outlet is not None
        is_ready = asyncio.Event()
        error: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                sending = asyncio.Event()
                tasks.start_soon(self._send, outlet, sending)
                async with anyio.create_task_group() as driving:
                    driving.start_soon(conductor.run, is_ready)
                    await is_ready.wait()
                    self._has_started = True
                    if not started.done():
                        started.set_result(None)
                    await self._closing.wait()
                    driving.cancel_scope.cancel()
                conductor.end_all(None)
                outlet.close()
                with anyio.move_on_after(CLOSE_WAIT_S):
                    await sending.wait()
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            error = _first_of(group)
            _log.error("session_failed", error=type(error).__name__, reason=str(error))
            raise error from error.__cause__
        finally:
            conductor.end_all(error)
            outlet.close(error)

    @staticmethod
    async def _send(outlet: Outlet, is_over: asyncio.Event) -> None:
        try:
            await outlet.run()
        finally:
            is_over.set()

    # -- speech

    async def say(
        self,
        audio: Speech,
        *,
        sample_rate: int | None = None,
        channels: int = 1,
        encoding: Encoding = "int16",
        voice_agent_s: float | None = None,
    ) -> TurnResult:
        """Speak, and wait until it was played. Turns that wait are spoken in order.

        Cancelling cuts this turn and no other.

        Args:
            audio: PCM as bytes or array, the path of a media file, or an async iterator of PCM.
            sample_rate: Of PCM; a media file states its own.
            channels: Interleaved channels of PCM.
            encoding: Of bytes; an array's dtype states its own.
            voice_agent_s: What the caller's own VAD, STT, LLM and TTS took, for
                `TurnResult.latency`.

        Returns:
            What became of the turn; ``interrupted`` if it was cut.

        Raises:
            AudioFormatError: The speech is not what was stated; what came before it is cut.
            EngineFailed: The engine failed; the session has ended.
            SessionNotStarted, SessionClosed: There is no session.
        """
        turn = self.turn(
            sample_rate=rate_of(audio, sample_rate),
            channels=channels,
            encoding=encoding,
            voice_agent_s=voice_agent_s,
        )
        try:
            async with turn, aclosing(pieces(audio)) as spoken:
                async for piece in spoken:
                    await turn.push(piece)
            return await turn.result()
        finally:
            turn.cut()

    def turn(
        self,
        *,
        sample_rate: int | None = None,
        channels: int = 1,
        encoding: Encoding = "int16",
        voice_agent_s: float | None = None,
    ) -> Turn:
        """Begin a turn whose speech comes bit by bit; see `Turn`. Arguments as for `say`.

        Raises:
            SessionNotStarted, SessionClosed: There is no session.
        """
        return Turn(
            self._running,
            sample_rate=sample_rate,
            channels=channels,
            encoding=encoding,
            voice_agent_s=voice_agent_s,
        )

    async def interrupt(self) -> Position:
        """Cut the turn that sounds and all that wait: their sound ends within one frame.

        Returns:
            How much of the turn that sounded was played, and how that is known.
        """
        return await self._running.interrupt()

    async def pause(self) -> None:
        """Fall silent within a frame, for what may be a barge-in. Harmless between turns."""
        self._running.pause()

    async def resume(self) -> None:
        """Go on with the sample after the last one that was handed out."""
        self._running.resume()

    async def idle(self, seconds: float) -> None:
        """Wait for seconds of the session's own timeline; an unpaced one moves for it."""
        await self._running.idle(ceil(seconds * FPS))

    # -- the character

    def listening(self, on: bool = True) -> None:
        """Look attentive, or no longer."""
        self.set_controls(listening=on)

    def gesture(self, name: GestureName) -> None:
        """Make a gesture now, in speech as in idle: ``"nod"``, ``"shake"`` or ``"tilt"``.

        An engine whose ``info.controls`` lack ``"head"`` ignores it.
        """
        self._running.gesture(name)

    def set_controls(self, **changes: Unpack[ControlChanges]) -> None:
        """Change some of `Controls`; the others stay. Shown within the engine's pipeline."""
        conductor = self._running
        conductor.controls = replace(conductor.controls, **changes)

    # -- what comes out

    def frames(self) -> FrameReader:
        """Give the session's one reader of frames.

        Raises:
            SessionError: There is one already.
        """
        return self._running.outlet.attach_reader()

    # -- what is known

    @property
    def info(self) -> EngineInfo:
        """Of the engine. Raises `SessionNotStarted` before `start`."""
        if self._info is None:
            raise SessionNotStarted("start the session first: async with AvatarSession(...)")
        return self._info

    @property
    def avatar(self) -> Avatar:
        """The prepared photo, with its warnings. Raises `SessionNotStarted` before `start`."""
        if self._avatar is None:
            raise SessionNotStarted("start the session first: async with AvatarSession(...)")
        return self._avatar

    @property
    def state(self) -> State:
        """What the session does now."""
        return State.CLOSED if self._conductor is None else self._conductor.machine.state

    def stats(self) -> SessionStats:
        """How steady it ran so far; also after `aclose`."""
        return self._stats.snapshot()

    def usage(self) -> Usage:
        """What it used so far; stops at `aclose`."""
        if self._meter is None:
            return Usage()
        return self._meter.usage(self._loop_time())

    def gpu_hours(self) -> float:
        """GPU-hours held so far; 0.0 where the engine holds no GPU. Stops at `aclose`."""
        return self.usage().gpu_hours

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()

    @property
    def _running(self) -> Conductor:
        if self._conductor is None:
            raise SessionNotStarted("start the session first: async with AvatarSession(...)")
        self._conductor.check_running()
        return self._conductor


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """Give what failed first; several loops failing at once is rare, and the first is the cause."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
