"""An event loop whose clock jumps to the next timer: an hour of conversation in seconds.

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(an_hour_of_talk())

Real time does not pass in it, so nothing that waits for a thread or a socket can be timed by it:
virtual time outruns them.
"""

from __future__ import annotations

import asyncio
import selectors


class _JumpSelector(selectors.DefaultSelector):
    """Never sleeps while a timer is set: moves the clock to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at time 0 and never waits."""

    def __init__(self) -> None:
        self._jump = _JumpSelector()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds of virtual time since the loop was made."""
        return self._jump.now
