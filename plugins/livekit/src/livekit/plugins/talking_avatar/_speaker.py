"""LiveKit's segments of speech as turns of a session.

Takes audio frames, the ends of segments, clears and pauses: from the agent's own audio output or
from a stream of bytes. Gives each segment to the session as a turn, and reports each exactly once
as finished, with the position that was heard: whether it was played, cleared before anything of it
was, or lost with its session. Nothing here waits for the room.

A segment is a turn of its own, so that neither a late end nor a late frame of one that was cleared
can reach the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from livekit import rtc
from talking_avatar import AvatarSession, Turn, TurnResult
from talking_avatar.errors import TurnClosed

MAX_WAITING_S = 30.0
"""Speech kept while there is no session to say it: an engine that starts. Past it pushing waits."""


@dataclass(slots=True, eq=False)
class _Segment:
    sample_rate: int
    num_channels: int
    pieces: deque[rtc.AudioFrame] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waiting_s: float = 0.0
    pushed_s: float = 0.0
    is_ended: bool = False
    is_cut: bool = False
    turn: Turn | None = None
    heard_from: float | None = None

    def add(self, frame: rtc.AudioFrame) -> None:
        self.pieces.append(frame)
        self.waiting_s += frame.duration
        self.pushed_s += frame.duration
        self.changed.set()

    def take(self) -> rtc.AudioFrame:
        frame = self.pieces.popleft()
        self.waiting_s -= frame.duration
        return frame

    def end(self) -> None:
        self.is_ended = True
        self.changed.set()

    def cut(self) -> None:
        self.is_cut = True
        self.pieces.clear()
        self.waiting_s = 0.0
        self.end()
        if self.turn is not None:
            self.turn.cut()

    def guess_heard_s(self, now: float) -> float:
        """Give how much was heard, where its session can't say any more."""
        return 0.0 if self.heard_from is None else min(self.pushed_s, now - self.heard_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEvents:
    """Who is told.

    Attributes:
        on_started: The first sample of a segment is heard.
        on_finished: A segment is over: seconds heard of it, and whether it was interrupted.
        on_result: The session's own result, of segments that had one; comes before.
    """

    on_started: Callable[[], None]
    on_finished: Callable[[float, bool], None]
    on_result: Callable[[TurnResult], None]


class Speaker:
    """All segments of one agent, in order, across sessions."""

    def __init__(self, events: SpeakerEvents) -> None:
        self._events = events
        self._open: list[_Segment] = []  # begun and not finished
        self._unspoken: deque[_Segment] = deque()  # those of them without a turn
        self._current: _Segment | None = None
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_held = False
        self._is_closed = False

    @property
    def num_open(self) -> int:
        """Segments that were begun and are not finished."""
        return len(self._open)

    # -- from the agent

    async def push(self, frame: rtc.AudioFrame) -> None:
        """Add speech to the current segment, or begin one.

        Raises:
            ValueError: The format changed within a segment.
        """
        if self._current is None:
            self.begin(frame.sample_rate, frame.num_channels)
        segment = self._current
        assert segment is not None
        stated = (segment.sample_rate, segment.num_channels)
        if (frame.sample_rate, frame.num_channels) != stated:
            raise ValueError(
                f"the format changed within a segment, from {stated} to "
                f"({frame.sample_rate}, {frame.num_channels}): flush() between them"
            )
        if segment.is_ended:
            return  # it was cleared, or there is nobody to say it
        segment.add(frame)
        while segment.waiting_s > MAX_WAITING_S:
            self._has_room.clear()
            await self._has_room.wait()

    def begin(self, sample_rate: int, num_channels: int) -> None:
        """Begin a segment; the one before is complete. From now on it is owed a report."""
        self.end()
        segment = self._current = _Segment(sample_rate, num_channels)
        self._open.append(segment)
        if self._is_closed:
            segment.cut()
            self._finish(segment, 0.0, interrupted=True)
        else:
            self._unspoken.append(segment)
            self._changed.set()

    def end(self) -> None:
        """The current segment is complete."""
        if self._current is not None:
            self._current.end()
            self._current = None

    def clear(self) -> None:
        """Cut every segment that is not over; each is reported, within a tick of the loop.

        What still comes of the current one, until its `end`, is dropped.
        """
        for segment in list(self._open):
            segment.cut()
            if segment.turn is None:
                self._finish(segment, 0.0, interrupted=True)
        self._unspoken.clear()
        self._has_room.set()

    def hold(self) -> None:
        """Begin no segment until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Begin what was held."""
        self._is_held = False
        self._changed.set()

    def close(self) -> None:
        """There is nobody to speak any more: finish everything, now and from now on."""
        self._is_closed = True
        self.clear()
        self._abandon()

    def note_heard(self, turn_id: int) -> None:
        """The first sample of a turn is heard."""
        for segment in self._open:
            if segment.turn is not None and segment.turn.turn_id == turn_id and not segment.is_cut:
                segment.heard_from = asyncio.get_running_loop().time()
                self._events.on_started()

    # -- to the session

    async def serve(self, session: AvatarSession) -> None:
        """Give segments to a session until it ends, or this is cancelled.

        Raises:
            ExceptionGroup: What ended the session.
        """
        try:
            async with asyncio.TaskGroup() as speaking:
                while True:
                    segment = await self._next()
                    segment.turn = session.turn(
                        sample_rate=segment.sample_rate, channels=segment.num_channels
                    )
                    speaking.create_task(self._speak(segment, segment.turn))
        finally:
            self._abandon()

    async def wait_for_speech(self) -> None:
        """Wait until there is a segment to be spoken."""
        while not self._unspoken or self._is_held:
            self._changed.clear()
            await self._changed.wait()

    async def _next(self) -> _Segment:
        await self.wait_for_speech()
        return self._unspoken.popleft()

    async def _speak(self, segment: _Segment, turn: Turn) -> None:
        with suppress(TurnClosed):  # it was cleared: its result says so
            await self._push_all(segment, turn)
        result = await turn.result()
        self._events.on_result(result)
        self._finish(segment, result.played_s, interrupted=result.interrupted)

    async def _push_all(self, segment: _Segment, turn: Turn) -> None:
        while True:
            while segment.pieces:
                frame = segment.take()
                self._has_room.set()
                await turn.push(frame.data.cast("B"))
            if segment.is_ended:
                await turn.end()
                return
            segment.changed.clear()
            await segment.changed.wait()

    def _abandon(self) -> None:
        """Finish what was being said by a session that is gone."""
        now = asyncio.get_running_loop().time()
        for segment in [segment for segment in self._open if segment.turn is not None]:
            segment.cut()
            self._finish(segment, segment.guess_heard_s(now), interrupted=True)

    def _finish(self, segment: _Segment, heard_s: float, *, interrupted: bool) -> None:
        if segment in self._open:
            self._open.remove(segment)
            self._events.on_finished(heard_s, interrupted)
