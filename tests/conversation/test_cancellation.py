"""Case 20: `say` is cancelled at every point at which it can wait; the session lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import numpy as np
import pytest

from talking_avatar.session import AvatarSession
from talking_avatar.testing import FakeEngine, RecordingTransport, counted, in_virtual_time

RATE = 24_000


async def stream() -> AsyncIterator[np.ndarray]:
    for _ in range(3):
        await asyncio.sleep(0.05)
        yield counted(0.1)


SOURCES: dict[str, Any] = {
    "whole": lambda: counted(1.2),
    "streamed": stream,
    "longer than the backlog": lambda: counted(32),
}


async def turns_of_the_loop(num: int) -> None:
    """Let the loop run ``num`` times; timers count as its turns, too."""
    for _ in range(num):
        await asyncio.sleep(0)


@pytest.mark.parametrize("clock", ["live", "unpaced"])
@pytest.mark.parametrize("source", SOURCES)
@in_virtual_time
async def test_cancelled_by_its_task_at_every_turn_of_the_loop(clock: Any, source: str) -> None:
    transport = RecordingTransport(keep=200)
    async with AvatarSession(
        "any", engine=FakeEngine(), transport=transport, clock=clock
    ) as session:
        points = [*range(60), *range(60, 600, 23)]
        for num in points:
            saying = asyncio.create_task(session.say(SOURCES[source](), sample_rate=RATE))
            await turns_of_the_loop(num)
            if saying.done():
                continue
            saying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saying
            assert saying.cancelled(), "the cancellation is not swallowed"
        transport.sent.clear()
        result = await session.say(counted(0.5, sign=-1), sample_rate=RATE)
        assert (result.played_s, result.interrupted) == (0.5, False)
        assert np.array_equal(transport.sound(result.turn_id), counted(0.5, sign=-1))
        assert session.stats().num_turns == result.turn_id, "each turn had its outcome"


@pytest.mark.parametrize("clock", ["live", "unpaced"])
@in_virtual_time
async def test_cancelled_by_a_scope_at_any_time(clock: Any) -> None:
    transport = RecordingTransport(keep=200)
    async with AvatarSession(
        "any", engine=FakeEngine(), transport=transport, clock=clock
    ) as session:
        for ms in range(0, 400, 7):
            with anyio.move_on_after(ms / 1e3) as scope:
                await session.say(counted(1), sample_rate=RATE)
            assert scope.cancelled_caught or clock == "unpaced"
        transport.sent.clear()
        result = await session.say(counted(0.5, sign=-1), sample_rate=RATE)
        assert np.array_equal(transport.sound(result.turn_id), counted(0.5, sign=-1))


@in_virtual_time
async def test_cancelling_one_turn_leaves_the_others() -> None:
    transport = RecordingTransport()
    async with AvatarSession("any", engine=FakeEngine(), transport=transport) as session:
        first = asyncio.create_task(session.say(counted(1), sample_rate=RATE))
        second = asyncio.create_task(session.say(counted(1), sample_rate=RATE))
        third = asyncio.create_task(session.say(counted(1, sign=-1), sample_rate=RATE))
        await asyncio.sleep(0.5)
        second.cancel()
        await asyncio.sleep(0.1)
        first.cancel()
        result = await third
        assert first.cancelled()
        assert second.cancelled()
    assert (result.turn_id, result.played_s) == (3, 1.0)
    assert not len(transport.sound(2))
    assert np.array_equal(transport.sound(3), counted(1, sign=-1))


@in_virtual_time
async def test_cancelling_who_waits_for_a_result_does_not_cut_the_turn() -> None:
    async with AvatarSession("any", engine=FakeEngine(), transport=RecordingTransport()) as session:
        async with session.turn(sample_rate=RATE) as turn:
            await turn.push(counted(1))
        with anyio.move_on_after(0.2) as scope:
            await turn.result()
        assert scope.cancelled_caught
        assert not (await turn.result()).interrupted


@in_virtual_time
async def test_cancelling_an_interruption_still_ends_the_turns() -> None:
    class Stuck(RecordingTransport):
        async def interrupt(self) -> None:
            await asyncio.sleep(1e6)

    async with AvatarSession("any", engine=FakeEngine(), transport=Stuck()) as session:
        saying = asyncio.create_task(session.say(counted(1), sample_rate=RATE))
        await asyncio.sleep(0.3)
        with anyio.move_on_after(0.1):
            await session.interrupt()
        assert (await saying).interrupted
        at = asyncio.get_running_loop().time()
        await session.interrupt()
        assert asyncio.get_running_loop().time() - at == pytest.approx(0.25), "bounded"


@in_virtual_time
async def test_cancelling_idle_and_pushes_leaves_the_session() -> None:
    async with AvatarSession("any", engine=FakeEngine(), transport=RecordingTransport()) as session:
        with anyio.move_on_after(0.5):
            await session.idle(100)
        with anyio.move_on_after(0.5):
            async with session.turn(sample_rate=RATE) as turn:
                await turn.push(counted(60))
        assert (await turn.result()).interrupted
        assert (await session.say(counted(0.2), sample_rate=RATE)).played_s == 0.2


async def test_uvloop_works_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        transport = RecordingTransport()
        async with AvatarSession("any", engine=FakeEngine(), transport=transport) as session:
            saying = asyncio.create_task(session.say(counted(5), sample_rate=RATE))
            await asyncio.sleep(0.3)
            await session.interrupt()
            assert (await saying).interrupted
            assert (await session.say(counted(0.3), sample_rate=RATE)).played_s == 0.3
        assert np.array_equal(transport.sound(2)[:7_200], counted(0.3))

    await asyncio.to_thread(lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main()))
