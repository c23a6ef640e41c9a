"""An event loop whose clock jumps to the next timer: an hour of conversation in seconds.

    @in_virtual_time
    async def test_an_hour_of_silence():
        async with AvatarSession("any", engine=FakeEngine()) as session:
            await session.idle(3600)

Real time does not pass in it, so nothing that waits for a thread or a socket can be timed by it:
virtual time outruns them.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Join the default executor's threads, for as long as they take in real time."""
        await super().shutdown_default_executor()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh `VirtualTimeLoop`.

    Raises:
        AssertionError: It ended well but left tasks behind.
    """

    async def tidy() -> T:
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were left behind: {left}"
        return result

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(tidy())


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a plain function of an async test: it runs in virtual time and must leave no task."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_in_virtual_time(test(*args, **kwargs))

    return run
