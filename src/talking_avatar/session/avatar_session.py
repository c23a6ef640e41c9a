"""`AvatarSession`: a photo that talks, as application code awaits it.

Takes speech and wishes, gives frames and results. Never runs anything itself: what runs lives in
the owner task. Cancelling a caller takes back what it asked for, never the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from math import ceil, isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

from talking_avatar.audio import Encoding
from talking_avatar.config import EngineConfig
from talking_avatar.cost import RateCard, Usage
from talking_avatar.engine.base import FPS, Avatar, Emotion, Engine, EngineInfo, Photo
from talking_avatar.errors import SessionNotStarted
from talking_avatar.ledger import Ledger
from talking_avatar.session.conductor import Conductor
from talking_avatar.session.gestures import GestureName
from talking_avatar.session.outlet import FrameReader
from talking_avatar.session.owner import Owner, Settings
from talking_avatar.session.sources import Speech, pieces, rate_of
from talking_avatar.session.turn_handle import Turn
from talking_avatar.stats import SessionStats, StatsRecorder
from talking_avatar.transport import Transport
from talking_avatar.turn import State
from talking_avatar.types import ClockMode, PixelFormat, Position, TurnResult

_NOT_STARTED = "start the session first: async with AvatarSession(...)"


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
        ledger: Keeps what the session used, on disk: a `Ledger` or the path of one. Trouble with
            it is an event, and never ends a session.
        rates: What its devices cost; without it, prices are None.
        tags: What to find it by in the ledger: customer, agent...
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
        ledger: Ledger | str | Path | None = None,
        rates: RateCard | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._stats = StatsRecorder()
        self._owner = Owner(
            Settings(
                photo=photo,
                engine=engine,
                transport=transport,
                clock=clock,
                seed=seed,
                pixel_format=pixel_format,
                face=face,
                checks_capacity=checks_capacity,
                ledger=Ledger.of(ledger) if isinstance(ledger, str | Path) else ledger,
                rates=rates,
                tags=dict(tags or {}),
            ),
            self._stats,
        )

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
        await self._owner.start()

    async def aclose(self) -> None:
        """End the session: cut what is being said, let the transport finish, release the engine.

        Idempotent; any task may call it, and several may at once. What ended the session is not
        raised here: `say` and `frames` did.

        Raises:
            Exception: What failed while closing: a file that could not be finished, for one.
        """
        await self._owner.aclose()

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
            async with turn.leaving_when_over(), turn, aclosing(pieces(audio)) as spoken:
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
            AudioFormatError: No sample rate was stated.
            ValueError: What was stated is no format.
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
        if not isfinite(seconds):
            raise ValueError(f"seconds {seconds} must be finite")
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

    def frames(self, *, until: asyncio.Future[Any] | None = None) -> FrameReader:
        """Give the session's one reader of frames.

        Args:
            until: A task, such as that of `say`: the iteration ends when it is done and the frames
                that left before were taken. None: it ends with the session. An unpaced session has
                no frames but those of turns, so a loop that waits for one more would wait for ever.

        Raises:
            SessionError: There is one already.
        """
        return self._running.outlet.attach_reader(until)

    # -- what is known

    @property
    def info(self) -> EngineInfo:
        """Of the engine. Raises `SessionNotStarted` before `start`."""
        if self._owner.info is None:
            raise SessionNotStarted(_NOT_STARTED)
        return self._owner.info

    @property
    def avatar(self) -> Avatar:
        """The prepared photo, with its warnings. Raises `SessionNotStarted` before `start`."""
        if self._owner.avatar is None:
            raise SessionNotStarted(_NOT_STARTED)
        return self._owner.avatar

    @property
    def state(self) -> State:
        """What the session does now."""
        conductor = self._owner.conductor
        return State.CLOSED if conductor is None else conductor.machine.state

    def stats(self) -> SessionStats:
        """How steady it ran so far; also after `aclose`."""
        return self._stats.snapshot()

    def usage(self) -> Usage:
        """What it used so far; stops at `aclose`."""
        return self._owner.usage()

    def gpu_hours(self) -> float:
        """GPU-hours held so far; 0.0 where the engine holds no GPU. Stops at `aclose`."""
        return self.usage().gpu_hours

    @property
    def _running(self) -> Conductor:
        conductor = self._owner.conductor
        if conductor is None:
            raise SessionNotStarted(_NOT_STARTED)
        conductor.check_running()
        return conductor
