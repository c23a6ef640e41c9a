"""One character in motion: a worker thread that turns speech windows into frames.

Takes: windows and controls, from the event loop. Gives: `ThreadTicket`s, settled in order.
Never: works on the caller's thread, or outlives `PortraitStream.aclose`.

Everything that moves the performer, a rewind too, goes through one queue and is done by one thread
in order. So a rewind needs no waiting: it takes the later chunks out of the queue and appends the
order to restore the state after the chunk that is kept. The queue is bounded by the pipeline's
depth (a longer one would only be speech that cannot be interrupted any more).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Condition, Thread
from time import perf_counter, thread_time
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from talking_avatar.engine._tickets import ThreadEvent, ThreadTicket
from talking_avatar.engine.base import Controls, EngineInfo, FrameBlock, SpeechWindow
from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.networks import opencv_threads
from talking_avatar.engine.portrait.picture_memory import PictureMemory
from talking_avatar.errors import EngineBusy, EngineError, EngineFailed

NUM_SNAPSHOTS = 64
"""Chunks whose state is kept: 2.7 s; rewinds may follow each other without new chunks between."""


class Performance(Protocol):
    """What decides how the face looks: `performer.Performer`."""

    def perform(self, window: SpeechWindow, controls: Controls) -> tuple[FaceState, ...]: ...
    def snapshot(self) -> Any: ...
    def restore(self, snapshot: Any) -> None: ...


class Rendering(Protocol):
    """What draws the face: `renderer.PortraitRenderer`."""

    def render(self, state: FaceState, out: npt.NDArray[np.uint8]) -> object: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Make:
    window: SpeechWindow
    controls: Controls
    ticket: ThreadTicket


@dataclass(frozen=True, slots=True)
class _Restore:
    to_chunk: int


class PortraitStream:
    """An `AvatarStream` on one worker thread."""

    def __init__(
        self, performer: Performance, renderer: Rendering, info: EngineInfo, num_threads: int
    ) -> None:
        self._performer = performer
        self._renderer = renderer
        self._info = info
        self._num_threads = num_threads
        # In steady motion: those in the pipeline, one in work, and one on its way out.
        self._pictures = PictureMemory(
            (info.frames_per_chunk, info.height, info.width, 3), info.pipeline_depth + 2
        )
        # Shared between the caller and the worker, guarded by `_changed`.
        self._changed = Condition()
        self._orders: deque[_Make | _Restore] = deque()
        self._outstanding: set[ThreadTicket] = set()
        self._tickets: WeakValueDictionary[int, ThreadTicket] = WeakValueDictionary()
        self._next_chunk = 0
        self._oldest = -1
        self._is_closing = False
        # The worker's own.
        self._snapshots: dict[int, Any] = {-1: performer.snapshot()}
        self._failure: Exception | None = None
        self._stopped = ThreadEvent()
        self._thread = Thread(target=self._work, name="talking-avatar-portrait", daemon=True)
        self._thread.start()

    def submit(self, window: SpeechWindow, controls: Controls) -> ThreadTicket:
        """Queue one chunk; see `AvatarStream.submit`."""
        with self._changed:
            self._check(window)
            ticket = ThreadTicket(window.chunk_index)
            self._outstanding.add(ticket)
            self._tickets[window.chunk_index] = ticket
            self._next_chunk += 1
            self._oldest = max(self._oldest, self._next_chunk - NUM_SNAPSHOTS)
            self._orders.append(_Make(window, controls, ticket))
            self._changed.notify()
        return ticket

    async def rewind(self, to_chunk: int) -> None:
        """Forget every chunk after ``to_chunk``; see `AvatarStream.rewind`."""
        with self._changed:
            self._check_open()
            if not self._oldest <= to_chunk < self._next_chunk:
                raise ValueError(
                    f"cannot rewind to chunk {to_chunk}: chunks {self._oldest} to "
                    f"{self._next_chunk - 1} can be returned to"
                )
            kept = (
                o for o in self._orders if isinstance(o, _Restore) or not _is_after(o, to_chunk)
            )
            self._orders = deque((*kept, _Restore(to_chunk)))
            self._drop_after(to_chunk, f"the stream was rewound to chunk {to_chunk}")
            self._next_chunk = to_chunk + 1
            self._changed.notify()

    async def aclose(self) -> None:
        """Drop what is outstanding and end the thread; waits for at most the frame in work."""
        with self._changed:
            self._is_closing = True
            self._orders.clear()
            self._drop_after(-1, "the stream was closed")
            self._changed.notify()
        await self._stopped.wait()
        self._thread.join()

    def _check(self, window: SpeechWindow) -> None:
        self._check_open()
        info = self._info
        num_samples = info.chunk_samples + info.lookahead_samples
        if window.chunk_index != self._next_chunk:
            raise ValueError(f"chunk {window.chunk_index} submitted, {self._next_chunk} expected")
        if window.samples.shape != (num_samples,):
            raise ValueError(f"samples have shape {window.samples.shape}, not ({num_samples},)")
        if not info.chunk_samples <= window.num_known <= num_samples:
            raise ValueError(
                f"num_known is {window.num_known}, not {info.chunk_samples} to {num_samples}"
            )
        if len(self._outstanding) >= info.pipeline_depth:
            raise EngineBusy(
                f"{len(self._outstanding)} chunks are outstanding, as many as the pipeline holds: "
                "await a ticket first"
            )

    def _check_open(self) -> None:
        if self._is_closing:
            raise EngineError("the stream is closed: open another one")

    def _drop_after(self, to_chunk: int, reason: str) -> None:
        for ticket in list(self._tickets.values()):
            if ticket.chunk_index > to_chunk:
                self._outstanding.discard(ticket)
                ticket.drop(reason)

    # From here on: the worker thread.

    def _work(self) -> None:
        try:
            while (order := self._next_order()) is not None:
                if isinstance(order, _Restore):
                    self._restore(order.to_chunk)
                else:
                    self._make(order)
        finally:
            self._stopped.set()

    def _next_order(self) -> _Make | _Restore | None:
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._is_closing)
            return None if self._is_closing else self._orders.popleft()

    def _make(self, order: _Make) -> None:
        outcome: FrameBlock | EngineError
        try:
            outcome = self._frames(order.window, order.controls)
        except Exception as error:
            # The performer may be half-way: nothing but a rewind to a known state can go on.
            self._failure = self._failure or error
            outcome = _failed(order.window.chunk_index, self._failure)
        with self._changed:
            self._outstanding.discard(order.ticket)
        order.ticket.settle(outcome)

    def _frames(self, window: SpeechWindow, controls: Controls) -> FrameBlock:
        if self._failure is not None:
            raise self._failure
        begin, cpu_begin = perf_counter(), thread_time()
        states = self._performer.perform(window, controls)
        block = self._pictures.lend()
        with opencv_threads(self._num_threads):
            for state, image in zip(states, block, strict=True):
                self._renderer.render(state, out=image)
        self._keep_snapshot(window.chunk_index)
        return FrameBlock(
            window.chunk_index,
            block,
            generate_s=perf_counter() - begin,
            cpu_s=thread_time() - cpu_begin,
        )

    def _keep_snapshot(self, chunk: int) -> None:
        self._snapshots[chunk] = self._performer.snapshot()
        for old in [key for key in self._snapshots if key < self._oldest]:
            del self._snapshots[old]

    def _restore(self, to_chunk: int) -> None:
        for later in [key for key in self._snapshots if key > to_chunk]:
            del self._snapshots[later]
        if to_chunk in self._snapshots:  # else that chunk has failed, and the stream still has
            self._performer.restore(self._snapshots[to_chunk])
            self._failure = None


def _is_after(order: _Make, chunk: int) -> bool:
    return order.window.chunk_index > chunk


def _failed(chunk: int, cause: Exception) -> EngineFailed:
    error = EngineFailed(f"the portrait engine failed at chunk {chunk}: {cause!r}")
    error.__cause__ = cause
    return error
