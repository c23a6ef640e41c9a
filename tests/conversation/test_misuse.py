"""What a program may get wrong is said at once, in words; what it leaves undone hangs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from talking_avatar import AudioFormatError, AvatarSession, Position, TransportClosed
from talking_avatar.engine.base import Controls
from talking_avatar.errors import SessionError
from talking_avatar.testing import FakeEngine, RecordingTransport, counted, in_virtual_time

OpenStage = Any
RATE = 24_000


@in_virtual_time
async def test_another_thread_is_told_how_to_call(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        turn = stage.session.turn(sample_rate=RATE)
        calls = {
            "say": lambda: asyncio.run(stage.session.say(counted(1), sample_rate=RATE)),
            "push": lambda: asyncio.run(turn.push(counted(1))),
            "interrupt": lambda: asyncio.run(stage.session.interrupt()),
            "gesture": lambda: stage.session.gesture("nod"),
        }
        for call in calls.values():
            with pytest.raises(SessionError, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(call)
        await turn.push(counted(0.5))
        await turn.end()
        assert (await turn.result()).played_s == 0.5


@in_virtual_time
async def test_a_synthesis_that_gives_no_more_does_not_hold_back_who_was_interrupted(
    open_stage: OpenStage,
) -> None:
    cleaned_up = []

    async def stuck() -> AsyncIterator[np.ndarray]:
        try:
            yield counted(0.5)
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)  # cancelled once: what it waits for now is not
            cleaned_up.append(True)

    async with open_stage() as stage:
        loop = asyncio.get_running_loop()
        speaking = asyncio.create_task(stage.session.say(stuck(), sample_rate=RATE))
        await asyncio.sleep(2)
        await stage.session.interrupt()
        interrupted_at = loop.time()
        result = await speaking
        assert loop.time() - interrupted_at < 0.1
    assert result.interrupted
    assert result.played_s == 0.5
    assert cleaned_up == [True]


@in_virtual_time
async def test_a_time_out_within_the_synthesis_is_the_callers(open_stage: OpenStage) -> None:
    async def too_slow() -> AsyncIterator[np.ndarray]:
        yield counted(0.5)
        raise TimeoutError("the service did not answer")

    async with open_stage() as stage:
        with pytest.raises(TimeoutError, match="did not answer"):
            await stage.session.say(too_slow(), sample_rate=RATE)


class Telling(RecordingTransport):
    """Says that what it was sent was played, as far as that."""

    def played_position(self) -> Position | None:
        return Position(self.sent[-1].frame.pts + 1 / 24 if self.sent else 0.0, "estimated")


@pytest.mark.parametrize("lag_s", [None, 0.2])
@in_virtual_time
async def test_an_unpaced_turn_ends_whatever_its_transport_says_was_played(
    open_stage: OpenStage, lag_s: float | None
) -> None:
    transport = Telling() if lag_s is None else RecordingTransport(delay_s=lag_s)
    async with open_stage(transport, clock="unpaced") as stage:
        for _ in range(2):
            result = await asyncio.wait_for(
                stage.session.say(counted(0.5), sample_rate=RATE), timeout=60
            )
            assert (result.played_s, result.interrupted) == (0.5, False)
            assert result.source == "handed_out", "the far end had not told of all of it"


@in_virtual_time
async def test_a_far_end_that_never_tells_the_rest_is_not_quoted(open_stage: OpenStage) -> None:
    class Deaf(RecordingTransport):
        def played_position(self) -> Position | None:
            return Position(0.1, "acknowledged")

    async with open_stage(Deaf()) as stage:
        result = await stage.session.say(counted(0.5), sample_rate=RATE)
    assert (result.played_s, result.source) == (0.5, "handed_out")


@pytest.mark.parametrize("clock", ["live", "unpaced"])
@in_virtual_time
async def test_a_far_end_that_is_gone_when_interrupted(open_stage: OpenStage, clock: str) -> None:
    class Gone(RecordingTransport):
        async def interrupt(self) -> None:
            raise TransportClosed("hung up")

    async with open_stage(Gone(), clock=clock) as stage:
        speaking = asyncio.create_task(stage.session.say(counted(3), sample_rate=RATE))
        await asyncio.sleep(0.5)
        await stage.session.interrupt()
        assert (await speaking).interrupted
        assert (await stage.session.say(counted(0.5), sample_rate=RATE)).played_s == 0.5


@pytest.mark.parametrize("clock", ["live", "unpaced"])
@in_virtual_time
async def test_frames_until_a_task_is_done(clock: Any) -> None:
    async with AvatarSession("any", engine=FakeEngine(), clock=clock) as session:
        for _ in range(2):
            speaking = asyncio.create_task(session.say(counted(0.5), sample_rate=RATE))
            sound = [frame.audio async for frame in session.frames(until=speaking)]
            await speaking
            assert np.count_nonzero(np.concatenate(sound)) == 12_000


@in_virtual_time
async def test_frames_until_a_task_that_fails_end_with_it(open_stage: OpenStage) -> None:
    async with AvatarSession("any", engine=FakeEngine(), clock="unpaced") as session:
        speaking = asyncio.create_task(session.say(np.full(9, np.nan), sample_rate=RATE))
        assert [frame async for frame in session.frames(until=speaking)] == []
        with pytest.raises(AudioFormatError):
            await speaking


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"sample_rate": 16_000.0}, "whole number"),
        ({"sample_rate": "16000"}, "whole number"),
        ({"sample_rate": -5}, "4000 to 384000"),
        ({"sample_rate": RATE, "channels": 0}, "channels 0"),
        ({"sample_rate": RATE, "encoding": "opus"}, "encoding 'opus'"),
    ],
)
@in_virtual_time
async def test_a_format_that_is_none_is_refused_when_the_turn_begins(
    open_stage: OpenStage, stated: dict[str, Any], complaint: str
) -> None:
    async with open_stage() as stage:
        with pytest.raises(ValueError, match=complaint):
            stage.session.turn(**stated)
        with pytest.raises(ValueError, match=complaint):
            await stage.session.say(counted(0.1), **stated)
        assert stage.session.stats().num_turns == 0


@in_virtual_time
async def test_channels_first_is_named(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        with pytest.raises(AudioFormatError, match=r"\(2, 24000\).*array\.T"):
            await stage.session.say(np.zeros((2, 24_000), np.float32), sample_rate=RATE)


@pytest.mark.parametrize(
    "changes",
    [
        {"emotion": "bored"},
        {"head": (1.0, 2.0)},
        {"gaze": (float("nan"), 0.0)},
        {"mouth_gain": -1.0},
        {"emotion_strength": float("inf")},
    ],
)
@in_virtual_time
async def test_controls_that_no_engine_could_show(
    open_stage: OpenStage, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="must"):
        Controls(**changes)
    async with open_stage() as stage:
        with pytest.raises(ValueError, match="must"):
            stage.session.set_controls(**changes)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
@in_virtual_time
async def test_idling_for_no_time_that_ends(open_stage: OpenStage, seconds: float) -> None:
    async with open_stage() as stage:
        with pytest.raises(ValueError, match="finite"):
            await stage.session.idle(seconds)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [({"engine": 5}, "engine: int"), ({"transport": 5}, "transport: int")],
)
def test_what_a_session_is_made_of(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        AvatarSession("any", **arguments)


@in_virtual_time
async def test_an_engine_of_no_name() -> None:
    with pytest.raises(ValueError, match="portrait, diffusion"):
        await AvatarSession("any", engine="portait").start()
