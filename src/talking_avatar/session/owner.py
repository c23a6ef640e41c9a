"""The one task that owns a session: everything it holds is opened, runs and is closed in there.

Takes settings, and two messages: start and close. Gives the conductor that everything else talks
to. `Owner.start` and `Owner.aclose` may be called in different tasks; no cancel scope of the
session is ever open in a caller's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import structlog

from talking_avatar.capacity import PROCESS_CAPACITY
from talking_avatar.config import DiffusionConfig, EngineConfig, PortraitConfig
from talking_avatar.cost import Meter, RateCard, Usage
from talking_avatar.engine import open_engine
from talking_avatar.engine.base import FPS, SAMPLE_RATE, Avatar, Engine, EngineInfo, Photo
from talking_avatar.errors import SessionClosed, SessionError
from talking_avatar.ledger import Ledger
from talking_avatar.session.conductor import Conductor
from talking_avatar.session.outlet import Outlet
from talking_avatar.stats import StatsRecorder
from talking_avatar.telemetry import PROCESS_SESSIONS
from talking_avatar.transport import MediaInfo, Transport
from talking_avatar.types import ClockMode, PixelFormat
from talking_avatar.watch import Watch

_log = structlog.stdlib.get_logger("talking_avatar.session")

CLOSE_WAIT_S = 10.0
"""How long closing waits for the transport to take the frames that it was offered: seconds of
encoding on a busy machine, and a bound for one that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a session was made with; see `AvatarSession`."""

    photo: Photo
    engine: str | EngineConfig | Engine
    transport: Transport | None
    clock: ClockMode
    seed: int
    pixel_format: PixelFormat
    face: int | None
    checks_capacity: bool
    ledger: Ledger | None
    rates: RateCard | None
    tags: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.clock not in ("live", "unpaced"):
            raise ValueError(f"clock {self.clock!r} must be 'live' or 'unpaced'")
        if self.pixel_format not in ("rgb24", "i420"):
            raise ValueError(f"pixel_format {self.pixel_format!r} must be 'rgb24' or 'i420'")
        is_named = isinstance(self.engine, (str, PortraitConfig, DiffusionConfig))
        if not (is_named or hasattr(self.engine, "prepare")):
            raise TypeError(
                f"engine: {type(self.engine).__name__} is neither the name of an engine, nor its "
                "configuration, nor an open engine"
            )
        if not (self.transport is None or hasattr(self.transport, "send")):
            raise TypeError(
                f"transport: {type(self.transport).__name__} is none: subclass "
                "talking_avatar.Transport"
            )


class Owner:
    """Starts and ends one session.

    Args:
        settings: Of the session.
        stats: Told of everything.

    Attributes:
        info, avatar, conductor: As soon as they exist.
    """

    def __init__(self, settings: Settings, stats: StatsRecorder) -> None:
        self._settings = settings
        self._stats = stats
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._is_running = False
        self._meter: Meter | None = None
        self._now: Callable[[], float] = lambda: 0.0
        self.info: EngineInfo | None = None
        self.avatar: Avatar | None = None
        self.conductor: Conductor | None = None

    async def start(self) -> None:
        """Open everything; return when the first frame is ready. Cancelled, it leaves nothing.

        Raises:
            SessionError: It was started before.
            Exception: What made it impossible.
        """
        if self._task is not None or self._closing.is_set():
            raise SessionError("a session starts once: make a new one")
        loop = asyncio.get_running_loop()
        self._now = loop.time
        started: asyncio.Future[None] = loop.create_future()
        self._task = asyncio.create_task(self._own(started), name="talking_avatar.session")
        try:
            await started
        except asyncio.CancelledError:
            self._task.cancel()
            await self._wait()
            raise
        except Exception:
            await self._wait()
            raise

    async def aclose(self) -> None:
        """End everything; idempotent.

        Raises:
            Exception: What failed while closing: a file that could not be finished, for one.
                What ended the session before is not raised again.
        """
        self._closing.set()
        if self._task is None:
            return
        if not self._is_running:
            self._task.cancel()
        await self._wait()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def usage(self) -> Usage:
        """Give what was used so far; also when the loop has ended."""
        return Usage() if self._meter is None else self._meter.usage(self._now())

    async def _wait(self) -> None:
        assert self._task is not None
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])

    async def _own(self, started: asyncio.Future[None]) -> None:
        """The owner task."""
        async with AsyncExitStack() as stack:
            try:
                outlet, conductor = await self._open(stack)
                await self._run(outlet, conductor, started)
            except Exception as error:
                if not started.done():
                    started.set_exception(error)
            finally:
                if not started.done():
                    started.set_exception(SessionClosed("the session was closed while it started"))

    async def _open(self, stack: AsyncExitStack) -> tuple[Outlet, Conductor]:
        settings = self._settings
        began = self._now()
        engine = await self._engine(stack)
        self.info = engine.info
        self._take_lease(stack, engine.info)
        meter = self._meter = Meter(engine.info.devices, rates=settings.rates)
        # What this session opened, it has held since it began to load.
        is_own = engine is not settings.engine
        meter.start(self._now(), since=began if is_own else None)
        self._be_watched(stack, engine.info, meter)
        self.avatar = await engine.prepare(settings.photo, face=settings.face)
        stream = await engine.open_stream(self.avatar, seed=settings.seed)
        stack.push_async_callback(stream.aclose)
        outlet = Outlet(settings.transport, clock=settings.clock, stats=self._stats, now=self._now)
        if settings.transport is not None:
            stack.push_async_callback(settings.transport.aclose)
            await settings.transport.open(self._media(engine.info))
        self.conductor = Conductor(
            stream,
            engine.info,
            outlet,
            clock=settings.clock,
            pixel_format=settings.pixel_format,
            stats=self._stats,
            meter=meter,
            on_stall=lambda: PROCESS_CAPACITY.note_stall(self._now()),
        )
        return outlet, self.conductor

    def _be_watched(self, stack: AsyncExitStack, info: EngineInfo, meter: Meter) -> None:
        """Let metrics and ledger see the session, until the meter has stopped."""
        settings = self._settings
        watch = Watch(info.name, meter, self._stats, self._now, settings.tags)
        if settings.ledger is not None:
            settings.ledger.add(watch)
            stack.push_async_callback(settings.ledger.finish, watch)
        PROCESS_SESSIONS.add(watch)
        stack.callback(PROCESS_SESSIONS.remove, watch)
        stack.callback(lambda: meter.stop(self._now()))

    async def _engine(self, stack: AsyncExitStack) -> Engine:
        """Give the engine; one that is opened here is closed here."""
        engine = self._settings.engine
        if not isinstance(engine, (str, PortraitConfig, DiffusionConfig)):
            return engine
        opened = await open_engine(engine)
        stack.push_async_callback(opened.aclose)
        return opened

    def _take_lease(self, stack: AsyncExitStack, info: EngineInfo) -> None:
        """Hold cores while the session lives, where it is cores that render in real time."""
        uses_gpu = any(device.is_gpu for device in info.devices)
        if self._settings.checks_capacity and self._settings.clock == "live" and not uses_gpu:
            PROCESS_CAPACITY.admit(info.step_s / info.chunk_s, self._now())
            stack.callback(lambda: PROCESS_CAPACITY.release(self._now()))

    def _media(self, info: EngineInfo) -> MediaInfo:
        return MediaInfo(
            width=info.width,
            height=info.height,
            pixel_format=self._settings.pixel_format,
            fps=FPS,
            sample_rate=SAMPLE_RATE,
            clock=self._settings.clock,
        )

    async def _run(
        self, outlet: Outlet, conductor: Conductor, started: asyncio.Future[None]
    ) -> None:
        """Run until `aclose`, the task's cancellation, or the first thing that fails."""
        error: Exception | None = None
        is_sent = asyncio.Event()
        try:
            async with anyio.create_task_group() as sending:
                sending.start_soon(_send, outlet, is_sent)
                await self._drive(conductor, started)
                conductor.end_all(None)
                outlet.close()
                with anyio.move_on_after(CLOSE_WAIT_S):
                    await is_sent.wait()
                sending.cancel_scope.cancel()
        except ExceptionGroup as group:
            error = _first_of(group)
            _log.error("session_failed", error=type(error).__name__, reason=str(error))
            raise error from error.__cause__
        finally:
            conductor.end_all(error)
            outlet.close(error)

    async def _drive(self, conductor: Conductor, started: asyncio.Future[None]) -> None:
        is_ready = asyncio.Event()
        async with anyio.create_task_group() as driving:
            driving.start_soon(conductor.run, is_ready)
            await is_ready.wait()
            self._is_running = True
            if self._meter is not None:
                self._meter.ready(self._now())
            if not started.done():
                started.set_result(None)
            await self._closing.wait()
            driving.cancel_scope.cancel()


async def _send(outlet: Outlet, is_sent: asyncio.Event) -> None:
    try:
        await outlet.run()
    finally:
        is_sent.set()


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """Give what failed first; several loops failing at once is rare, and the first is the cause."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
