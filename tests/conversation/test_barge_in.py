"""Interruptions and pauses: cases 15 to 19 and 21."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import numpy as np
import pytest

from talking_avatar.testing import (
    RecordingTransport,
    counted,
    in_virtual_time,
    read_picture,
)

FRAME_S = 1 / 24
OpenStage = Any


def speak(stage: Any, seconds: float, sign: int = 1) -> asyncio.Task[Any]:
    return asyncio.create_task(stage.session.say(counted(seconds, sign=sign), sample_rate=24_000))


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.010])
@in_virtual_time
async def test_a_turn_cut_before_its_first_frame_is_never_heard(
    open_stage: OpenStage, after_s: float
) -> None:
    async with open_stage() as stage:
        await stage.session.idle(1)
        turn = speak(stage, 2)
        await asyncio.sleep(after_s)
        before = asyncio.get_running_loop().time()
        position = await stage.session.interrupt()
        assert asyncio.get_running_loop().time() == before, "interrupt() returns at once"
        result = await turn
        await stage.session.idle(2)
    assert position.seconds == result.played_s == 0
    assert result.interrupted
    assert result.first_frame_s is None
    assert not stage.transport.sound().any()


@in_virtual_time
async def test_an_interruption_50_ms_after_say(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        await stage.session.idle(1)
        turn = speak(stage, 2)
        await asyncio.sleep(0.050)
        position = await stage.session.interrupt()
        result = await turn
        await stage.session.idle(2)
    heard = np.count_nonzero(stage.transport.sound())
    assert result.interrupted
    assert position.seconds == result.played_s == heard / 24_000
    assert heard <= 1_000


@in_virtual_time
async def test_an_interruption_in_the_last_300_ms_is_one(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        turn = speak(stage, 2)
        while np.count_nonzero(stage.transport.sound()) < 24_000 * 1.8:
            await asyncio.sleep(0.01)
        position = await stage.session.interrupt()
        result = await turn
        await stage.session.idle(1)
    assert result.interrupted
    assert result.played_s == position.seconds
    assert result.played_s == np.count_nonzero(stage.transport.sound()) / 24_000
    assert 1.8 <= result.played_s <= 1.8 + FRAME_S


@in_virtual_time
async def test_a_hundred_barge_ins_leave_nothing_and_the_next_turn_is_whole(
    open_stage: OpenStage,
) -> None:
    async with open_stage() as stage:
        await stage.session.idle(0.5)
        num_tasks, num_threads = len(asyncio.all_tasks()), threading.active_count()
        phases = random.Random(7)
        for _ in range(100):
            turn = speak(stage, 2)
            await asyncio.sleep(phases.uniform(0, 0.6))
            await stage.session.interrupt()
            assert (await turn).interrupted
        stage.transport.sent.clear()
        result = await stage.session.say(counted(2, sign=-1), sample_rate=24_000)
        assert len(asyncio.all_tasks()) == num_tasks
        assert threading.active_count() == num_threads
        stats = stage.session.stats()
    assert (result.interrupted, result.played_s) == (False, 2.0)
    assert np.array_equal(stage.transport.sound(result.turn_id), counted(2, sign=-1))
    assert (stats.num_turns, stats.num_interrupted, stats.num_stalls) == (101, 100, 0)


@in_virtual_time
async def test_five_queued_turns_each_get_their_own_result_once(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        turns = [speak(stage, 1) for _ in range(5)]
        await asyncio.sleep(1.9)
        position = await stage.session.interrupt()
        results = await asyncio.gather(*turns)
        await stage.session.idle(1)
    assert [result.turn_id for result in results] == [1, 2, 3, 4, 5]
    assert [result.interrupted for result in results] == [False, True, True, True, True]
    assert results[0].played_s == 1
    assert 0 < results[1].played_s == position.seconds < 1
    assert [result.played_s for result in results[2:]] == [0, 0, 0]


@in_virtual_time
async def test_the_turn_after_a_barge_in_holds_no_sample_of_the_cut_one(
    open_stage: OpenStage,
) -> None:
    async with open_stage() as stage:
        speak(stage, 2)
        await asyncio.sleep(1)
        await stage.session.interrupt()
        num_before = len(stage.transport.sent)
        await stage.session.say(counted(1, sign=-1), sample_rate=24_000)
    after = np.concatenate([frame.audio for frame in stage.transport.frames[num_before:]])
    assert not (after > 0).any()
    assert np.array_equal(after[after != 0], counted(1, sign=-1))


@pytest.mark.parametrize("num", [150, pytest.param(1_000, marks=pytest.mark.slow)])
@in_virtual_time
async def test_the_sound_ends_within_a_frame_and_the_picture_within_its_bound(
    open_stage: OpenStage, num: int
) -> None:
    phases = random.Random(11)
    async with open_stage() as stage:
        loop, bound = asyncio.get_running_loop(), stage.engine.info.barge_in_frames
        for _ in range(num):
            stage.transport.sent.clear()
            turn = speak(stage, 4)
            await asyncio.sleep(phases.uniform(0, 1.5))
            at = loop.time()
            await stage.session.interrupt()
            await stage.session.idle(0.5)
            after = [sent.frame for sent in stage.transport.sent if sent.at > at]
            assert not any(frame.speaking or frame.audio.any() for frame in after)
            energies = [read_picture(frame.image).energy for frame in after]
            assert not any(energies[bound:])
            assert (await turn).interrupted
        assert stage.session.stats().num_stalls == 0


@in_virtual_time
async def test_pictures_after_a_rewind_come_from_what_was_shown(open_stage: OpenStage) -> None:
    """The engine's history is that of the frames on the timeline, whatever was dropped."""
    phases = random.Random(5)
    async with open_stage() as stage:
        for _ in range(20):
            turn = speak(stage, 1)
            await asyncio.sleep(phases.uniform(0, 1.2))
            await stage.session.interrupt()
            await turn
    pictures = [read_picture(frame.image) for frame in stage.transport.frames]
    assert [picture.frame for picture in pictures] == list(range(len(pictures)))
    assert [frame.index for frame in stage.transport.frames] == list(range(len(pictures)))


@in_virtual_time
async def test_pause_and_resume_continue_with_the_next_sample(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        turn = speak(stage, 2)
        while np.count_nonzero(stage.transport.sound()) < 24_000:
            await asyncio.sleep(0.005)
        await stage.session.pause()
        num_spoken = len(stage.transport.sent)
        await asyncio.sleep(2)
        pause = stage.transport.frames[num_spoken:]
        await stage.session.resume()
        result = await turn
    assert 46 <= len(pause) <= 49
    assert not any(frame.speaking or frame.audio[48:].any() for frame in pause)
    assert (result.interrupted, result.played_s) == (False, 2.0)
    sound = stage.transport.sound(1)
    resumed = np.flatnonzero(sound != counted(2))
    assert all(24_000 <= at < 24_048 for at in resumed), "2 ms fade in where speech goes on"
    assert len(sound) == 48_000


@in_virtual_time
async def test_an_interruption_ends_a_pause(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        turn = speak(stage, 2)
        await asyncio.sleep(1)
        await stage.session.pause()
        await stage.session.interrupt()
        assert (await turn).interrupted
        result = await stage.session.say(counted(0.5), sample_rate=24_000)
    assert result.played_s == 0.5


@in_virtual_time
async def test_a_far_end_that_acknowledges_says_what_was_played(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(delay_s=0.3)) as stage:
        whole = await stage.session.say(counted(1), sample_rate=24_000)
        turn = speak(stage, 3)
        while np.count_nonzero(stage.transport.sound(2)) < 24_000:
            await asyncio.sleep(0.005)
        position = await stage.session.interrupt()
        cut = await turn
        assert stage.transport.num_interrupts == 1
    assert (whole.played_s, whole.source, whole.interrupted) == (1.0, "acknowledged", False)
    assert whole.latency.transport_s == pytest.approx(0.3, abs=2 * FRAME_S), "seen frame by frame"
    assert whole.latency.total_s == whole.first_frame_s + whole.latency.transport_s
    assert cut.source == position.source == "acknowledged"
    assert 0.65 <= cut.played_s == position.seconds <= 0.75


@in_virtual_time
async def test_a_turn_drains_until_the_far_end_has_played_it(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(delay_s=0.5)) as stage:
        turn = speak(stage, 1)
        while np.count_nonzero(stage.transport.sound(1)) < 24_000:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        assert stage.session.state.value == "draining"
        await stage.session.interrupt()
        result = await turn
    assert result.interrupted
    assert 0.6 <= result.played_s <= 0.8


@in_virtual_time
async def test_what_a_slow_taker_had_not_taken_is_muted(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(send_s=0.2)) as stage:
        turn = speak(stage, 2)
        await asyncio.sleep(1)
        await stage.session.interrupt()
        num_before = len(stage.transport.sent)
        await stage.session.idle(1)
        result = await turn
    assert not any(frame.audio.any() for frame in stage.transport.frames[num_before:])
    assert result.interrupted


@in_virtual_time
async def test_an_unpaced_turn_is_cut_while_its_speaker_waits_for_room(
    open_stage: OpenStage,
) -> None:
    async with open_stage(clock="unpaced") as stage:
        reader = stage.session.frames()  # takes only two: the timeline comes to a halt
        turn = speak(stage, 60)
        for _ in range(2):
            await anext(reader)
        await asyncio.sleep(5)
        assert not turn.done()
        await stage.session.interrupt()
        assert (await turn).played_s == pytest.approx(len(stage.transport.sent) * FRAME_S)
        reader.close()
        result = await stage.session.say(counted(0.5, sign=-1), sample_rate=24_000)
    assert result.played_s == 0.5
    assert np.array_equal(stage.transport.sound(2), counted(0.5, sign=-1))
    for frame in stage.transport.frames:
        if frame.turn_id == 2:
            sound = frame.audio.astype(np.float64) / 2**15
            assert read_picture(frame.image).energy == pytest.approx(np.mean(sound**2), rel=1e-4)
