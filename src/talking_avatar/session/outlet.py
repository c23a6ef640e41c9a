"""Whoever takes the frames: a reader, a transport, both, or nobody.

Takes each frame when it is due. Never makes the timeline of a live session wait; an unpaced one
waits for room. What was offered and not yet taken can still be muted.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import anyio
import numpy as np
import structlog

from talking_avatar.engine.base import FPS
from talking_avatar.errors import SessionError, TransportClosed
from talking_avatar.pacing import late_cause
from talking_avatar.stats import StatsRecorder
from talking_avatar.transport import INTERRUPT_WAIT_S, QUEUE_FRAMES, Transport
from talking_avatar.types import ClockMode, Frame, Position

_log = structlog.stdlib.get_logger("talking_avatar.session")

_SILENCE = np.zeros(1_000, np.int16)
_SILENCE.flags.writeable = False
_GRACE_FRAMES = FPS
"""Idle frames that nobody took before it is worth a warning: time to attach a reader."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A frame on its way out; ``due`` is None where nothing is due."""

    frame: Frame
    due: float | None
    woken: float

    def muted(self) -> Offer:
        """Give the same picture in silence."""
        frame = replace(self.frame, audio=_SILENCE, turn_id=None, speaking=False)
        return Offer(frame, self.due, self.woken)


class FrameQueue:
    """A bounded queue of offers with one taker.

    Args:
        size: Frames it holds.
        drops_to_newest: What gives way when it is full: all but the newest, or the oldest only.
        note_drops: Told how many frames were dropped.
    """

    def __init__(
        self, size: int, *, drops_to_newest: bool, note_drops: Callable[[int], None]
    ) -> None:
        self._size = size
        self._drops_to_newest = drops_to_newest
        self._note_drops = note_drops
        self._offers: deque[Offer] = deque()
        self._changed = asyncio.Event()
        self.is_closed = False
        self._error: Exception | None = None
        self.taken_frames = 0
        self.was_behind = False

    def offer(self, offer: Offer) -> None:
        """Add a frame at once; older ones give way."""
        if self.is_closed:
            return
        if len(self._offers) >= self._size:
            num_dropped = len(self._offers) if self._drops_to_newest else 1
            self._note_drops(num_dropped)
            for _ in range(num_dropped):
                self._offers.popleft()
        self._offers.append(offer)
        self._changed.set()

    async def put(self, offer: Offer) -> None:
        """Add a frame, then wait until no more than ``size`` are there.

        It is added first so that `mute` reaches it while we wait.
        """
        if self.is_closed:
            return
        self._offers.append(offer)
        self._changed.set()
        while len(self._offers) > self._size and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    async def take(self) -> Offer | None:
        """Wait for the next frame; None: the queue was closed, and all was taken.

        Raises:
            Exception: What the queue was closed with.
        """
        self.was_behind = bool(self._offers)
        while not self._offers:
            if self.is_closed:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        offer = self._offers.popleft()
        self.taken_frames = offer.frame.index + 1
        self._changed.set()
        return offer

    def mute(self, turn_ids: Collection[int] | None = None) -> None:
        """Silence what was not yet taken of some turns; None: of all."""
        for at, offer in enumerate(self._offers):
            if turn_ids is None or offer.frame.turn_id in turn_ids:
                self._offers[at] = offer.muted()

    def close(self, error: Exception | None = None) -> None:
        """No frame comes any more; ``error`` is raised to the taker after the last one.

        The first to close it says why.
        """
        if not self.is_closed:
            self.is_closed, self._error = True, error
            self._changed.set()


class FrameReader:
    """The frames of a session: ``async for frame in session.frames()``.

    A live reader that falls more than 12 frames behind goes on with the newest one; the gap is
    visible in `Frame.index` and in ``session.stats().reader_dropped``. Cancelling the wait for a
    frame loses none. Dropping the reader, or `close`, makes room for another.
    """

    def __init__(
        self,
        queue: FrameQueue,
        note_taken: Callable[[Offer, bool], None],
        detach: Callable[[FrameReader], None],
    ) -> None:
        self.queue = queue
        self._note_taken = note_taken
        self._detach = detach

    def __aiter__(self) -> FrameReader:
        return self

    async def __anext__(self) -> Frame:
        """Wait for the next frame; the iteration ends with the session.

        Raises:
            EngineFailed: The session ended because its engine failed.
        """
        offer = await self.queue.take()
        if offer is None:
            raise StopAsyncIteration
        self._note_taken(offer, self.queue.was_behind)
        return offer.frame

    def close(self) -> None:
        """Take no more frames; make room for another reader."""
        self._detach(self)
        self.queue.close()


class Outlet:
    """All takers of one session. Make it, then `run` it in a task while a transport is there.

    Args:
        transport: Or None.
        clock: Whether to wait for room.
        stats: Told of drops and lateness.
        now: The loop's clock.
    """

    def __init__(
        self,
        transport: Transport | None,
        *,
        clock: ClockMode,
        stats: StatsRecorder,
        now: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._is_live = clock == "live"
        self._stats = stats
        self._now = now
        self._has_warned = False
        self._reader: weakref.ref[FrameReader] | None = None
        self._to_transport = self._queue("transport_dropped", drops_to_newest=False)

    def _queue(self, counter: str, *, drops_to_newest: bool) -> FrameQueue:
        def note_drops(num: int) -> None:
            setattr(self._stats, counter, getattr(self._stats, counter) + num)

        return FrameQueue(QUEUE_FRAMES, drops_to_newest=drops_to_newest, note_drops=note_drops)

    def _queues(self) -> list[FrameQueue]:
        """Of those who take frames now: a reader that nobody holds any more is none."""
        reader = self._reader() if self._reader is not None else None
        queues = [] if reader is None else [reader.queue]
        if self._transport is not None:
            queues.append(self._to_transport)
        return queues

    def attach_reader(self, until: asyncio.Future[Any] | None = None) -> FrameReader:
        """Give the session's one reader; it ends when ``until`` is done.

        Raises:
            SessionError: There is one already.
        """
        reader = self._reader() if self._reader is not None else None
        if reader is not None and not reader.queue.is_closed:
            raise SessionError("frames() already has a reader: share its frames, or close it first")
        queue = self._queue("reader_dropped", drops_to_newest=True)
        if until is not None:
            until.add_done_callback(lambda _: queue.close())
        reader = FrameReader(queue, self._note_reader_took, self._detach_reader)
        self._reader = weakref.ref(reader, lambda _: queue.close())  # nobody waits for it any more
        return reader

    def _detach_reader(self, reader: FrameReader) -> None:
        if self._reader is not None and self._reader() is reader:
            self._reader = None

    async def hand_over(self, frame: Frame, *, due: float | None, woken: float) -> None:
        """Offer a frame to all takers; an unpaced session waits until they have room."""
        offer = Offer(frame, due, woken)
        queues = self._queues()
        if not queues:
            self._discard(offer)
        for queue in queues:
            if self._is_live:
                queue.offer(offer)
            else:
                await queue.put(offer)

    def _discard(self, offer: Offer) -> None:
        self._note_taken(offer, was_behind=False)
        self._stats.num_discarded += 1
        if self._has_warned:
            return
        if offer.frame.speaking or self._stats.num_discarded > _GRACE_FRAMES:
            self._has_warned = True
            _log.warning(
                "session_frames_discarded",
                hint="nobody takes the frames: read session.frames() or pass transport=...",
            )

    def _note_reader_took(self, offer: Offer, was_behind: bool) -> None:
        if self._transport is None:
            self._note_taken(offer, was_behind=was_behind)

    def _note_taken(self, offer: Offer, *, was_behind: bool) -> None:
        if offer.due is None:
            return
        now = self._now()
        cause = late_cause(due=offer.due, woken=offer.woken, taken=now, was_behind=was_behind)
        self._stats.taken(now - offer.due, cause)

    async def run(self) -> None:
        """Hand frames to the transport, one at a time, until the queue is closed and empty."""
        transport = self._transport
        if transport is None:
            return
        queue = self._to_transport
        try:
            while (offer := await queue.take()) is not None:
                self._note_taken(offer, was_behind=queue.was_behind)
                await transport.send(offer.frame)
        except TransportClosed as error:
            self._lose_transport(error)

    def _lose_transport(self, error: TransportClosed) -> None:
        """Run on without it: whoever listened has gone."""
        _log.warning("session_transport_closed", reason=str(error))
        self._transport = None
        self._to_transport.close()

    async def interrupt(self) -> None:
        """Mute all that was not yet taken; have the far end drop what it has not yet played."""
        for queue in self._queues():
            queue.mute()
        if self._transport is not None:
            try:
                with anyio.move_on_after(INTERRUPT_WAIT_S):
                    await self._transport.interrupt()
            except TransportClosed as error:
                self._lose_transport(error)

    def mute(self, turn_ids: Collection[int]) -> None:
        """Silence what was not yet taken of some turns."""
        for queue in self._queues():
            queue.mute(turn_ids)

    def played_position(self, handed_out: int) -> Position:
        """Give how far on the timeline was played, in seconds, and how that is known.

        Args:
            handed_out: Frames that were handed over.
        """
        reader = self._reader() if self._reader is not None else None
        if self._transport is not None:
            position = self._transport.played_position()
            if position is not None:
                return position
            handed_out = self._to_transport.taken_frames
        elif reader is not None:
            handed_out = min(handed_out, reader.queue.taken_frames)
        return Position(handed_out / FPS, "handed_out")

    def close(self, error: Exception | None = None) -> None:
        """No frame comes any more; the reader is told ``error`` after the last one."""
        for queue in self._queues():
            queue.close(error)
