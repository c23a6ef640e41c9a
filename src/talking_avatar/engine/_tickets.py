"""What a worker thread promises to asyncio tasks: an event, and a chunk's ticket.

Takes: outcomes, from any thread. Gives: them to any number of tasks, of any running event loop.
Never: blocks a thread, or fails because a waiter was cancelled or its loop has closed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Lock

from talking_avatar.engine.base import FrameBlock
from talking_avatar.errors import ChunkDropped, EngineError


class ThreadEvent:
    """Set once by a thread, awaited by tasks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake all that wait, now and later."""
        with self._lock:
            self._is_set = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            with suppress(RuntimeError):  # its loop has closed: nobody is left to be woken
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def wait(self) -> None:
        """Wait until it is set; at once if it already is."""
        with self._lock:
            if self._is_set:
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            await waiter
        finally:
            with self._lock, suppress(ValueError):
                self._waiters.remove(waiter)


class ThreadTicket:
    """A `ChunkTicket` that a worker thread settles."""

    def __init__(self, chunk_index: int) -> None:
        self._chunk_index = chunk_index
        self._lock = Lock()
        self._outcome: FrameBlock | EngineError | None = None
        self._settled = ThreadEvent()

    @property
    def chunk_index(self) -> int:
        return self._chunk_index

    def settle(self, outcome: FrameBlock | EngineError) -> None:
        """Give the frames, or say why there are none. The first outcome counts."""
        with self._lock:
            if self._outcome is None:
                self._outcome = outcome
        self._settled.set()

    def drop(self, reason: str) -> None:
        """Take the promise back, even one that was kept but perhaps not yet collected."""
        with self._lock:
            self._outcome = ChunkDropped(f"chunk {self._chunk_index} was dropped: {reason}")
        self._settled.set()

    async def frames(self) -> FrameBlock:
        await self._settled.wait()
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, EngineError):
            # A new error for each waiter: a shared one would collect all their tracebacks.
            raise type(outcome)(*outcome.args) from outcome.__cause__
        return outcome


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
