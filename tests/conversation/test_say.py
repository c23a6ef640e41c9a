"""What is said: whole and streamed speech, gaps, queues, formats, latency (cases 12 to 14)."""

from __future__ import annotations

import asyncio
import random
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from talking_avatar.errors import (
    AudioFormatError,
    SessionClosed,
    SessionNotStarted,
    TurnClosed,
)
from talking_avatar.session import AvatarSession
from talking_avatar.testing import (
    FakeEngine,
    RecordingTransport,
    counted,
    in_virtual_time,
    read_picture,
)

OpenStage = Any
RATE = 24_000


async def trickle(
    pcm: np.ndarray, *, speed: float, chunk_s: float = 0.020
) -> AsyncIterator[np.ndarray]:
    """Give speech bit by bit, ``speed`` times as fast as it sounds."""
    loop = asyncio.get_running_loop()
    start, step = loop.time(), round(chunk_s * RATE)
    for at in range(0, len(pcm), step):
        due = start + (at + step) / RATE / speed
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield pcm[at : at + step]


@in_virtual_time
async def test_every_sample_is_played_once_in_order(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        result = await stage.session.say(counted(3.0001), sample_rate=RATE)
    sound = stage.transport.sound(1)
    assert np.array_equal(sound[:72_002], counted(3.0001))
    assert not sound[72_002:].any()
    assert (result.num_frames, result.played_s) == (73, 72_002 / RATE)
    assert (result.stalls, result.source) == (0, "handed_out")


@in_virtual_time
async def test_the_picture_belongs_to_its_sound(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        await stage.session.say(counted(1), sample_rate=RATE)
    for frame in stage.transport.frames:
        sound = frame.audio.astype(np.float64) / 2**15
        assert read_picture(frame.image).energy == pytest.approx(np.mean(sound**2), rel=1e-4)


@in_virtual_time
async def test_queued_turns_are_spoken_in_order_without_a_frame_between(
    open_stage: OpenStage,
) -> None:
    async with open_stage() as stage:
        results = await asyncio.gather(
            *(stage.session.say(counted(0.5), sample_rate=RATE) for _ in range(3))
        )
    ids = [frame.turn_id for frame in stage.transport.frames if frame.turn_id is not None]
    assert ids == [1] * 12 + [2] * 12 + [3] * 12
    assert [result.turn_id for result in results] == [1, 2, 3]


# -- streaming


@pytest.mark.parametrize("speed", [1.0, 1.2, 4.0])
@in_virtual_time
async def test_speech_that_comes_fast_enough_has_no_gap(
    open_stage: OpenStage, speed: float
) -> None:
    async with open_stage() as stage:
        await stage.session.idle(0.51)
        pcm = counted(3)
        result = await stage.session.say(trickle(pcm, speed=speed), sample_rate=RATE)
    spoken = [frame.index for frame in stage.transport.frames if frame.turn_id == 1]
    assert spoken == list(range(spoken[0], spoken[0] + 72))
    assert np.array_equal(stage.transport.sound(1), pcm)
    assert result.stalls == 0


@in_virtual_time
async def test_speech_at_70_percent_of_real_time_pauses_and_loses_nothing(
    open_stage: OpenStage,
) -> None:
    pcm = counted(4)
    async with open_stage() as stage:
        result = await stage.session.say(trickle(pcm, speed=0.7), sample_rate=RATE)
        stats = stage.session.stats()
    frames = [frame for frame in stage.transport.frames if frame.turn_id == 1]
    gaps = [frame for frame in frames if not frame.speaking]
    sound = stage.transport.sound(1)
    assert (result.played_s, result.num_frames, result.interrupted) == (4.0, 96, False)
    assert len(sound) == len(pcm)
    assert len(gaps) > 24
    assert stats.num_stalls == 0
    assert stage.stream.windows
    starts = [n for n in range(1, len(frames)) if frames[n].speaking > frames[n - 1].speaking]
    assert 1 <= len(starts) <= 10, "a few long gaps, not many short ones"
    for n, frame in enumerate(frames[1:], 1):
        if not frame.speaking:
            assert not frame.audio[48:].any()
            assert read_picture(frame.image).energy == 0, "lips close in the gap"
            # 2 ms down from the last sample: no step larger than that ramp's own
            before = int(frames[n - 1].audio[-1])
            assert abs(int(frame.audio[0]) - before) <= abs(before) / 48 + 1
    unlike = np.flatnonzero(sound != pcm)
    assert len(unlike) <= 48 * len(starts), "only the 2 ms that fade in differ"


@in_virtual_time
async def test_flush_says_the_sentence_and_the_turn_goes_on(open_stage: OpenStage) -> None:
    async with open_stage() as stage, stage.session.turn(sample_rate=RATE) as turn:
        await turn.push(counted(0.45))
        await turn.flush()
        await asyncio.sleep(2)
        assert len(stage.transport.sound(1)) == 11_000
        await turn.push(counted(0.2, sign=-1))
        await turn.end()
        result = await turn.result()
    assert result.played_s == 0.65
    sound = stage.transport.sound(1)
    assert np.array_equal(sound[:10_800], counted(0.45))
    assert np.array_equal(sound[11_048:15_800], counted(0.2, sign=-1)[48:])


@in_virtual_time
async def test_ten_ms_chunks_are_one_turn(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        pcm = counted(1)
        await stage.session.say(trickle(pcm, speed=2, chunk_s=0.010), sample_rate=RATE)
    assert {frame.turn_id for frame in stage.transport.frames} <= {None, 1}
    assert np.array_equal(stage.transport.sound(1), pcm)


@in_virtual_time
async def test_speech_that_stops_short_of_a_window_is_said_out_of_patience(
    open_stage: OpenStage,
) -> None:
    async with open_stage() as stage, stage.session.turn(sample_rate=RATE) as turn:
        await turn.push(counted(0.1))
        await asyncio.sleep(2)
        assert len(stage.transport.sound(1)) == 2_000, "whole frames only: more may come"
        await turn.end()
        assert (await turn.result()).played_s == 0.1


@in_virtual_time
async def test_pushing_waits_when_half_a_minute_is_ahead(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(keep=1)) as stage:
        pcm = counted(45)
        async with stage.session.turn(sample_rate=RATE) as turn:
            await turn.push(pcm)
            assert 14 <= asyncio.get_running_loop().time() <= 16
        assert (await turn.result()).played_s == 45


@in_virtual_time
async def test_leaving_a_turn_by_an_exception_cuts_it(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        with pytest.raises(KeyError):
            async with stage.session.turn(sample_rate=RATE) as turn:
                await turn.push(counted(2))
                await asyncio.sleep(0.5)
                raise KeyError
        assert (await turn.result()).interrupted
        with pytest.raises(TurnClosed, match="interrupted"):
            await turn.push(counted(0.1))
        await turn.flush()
        await turn.end()


@in_virtual_time
async def test_an_interrupted_turn_leaves_its_block_quietly(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        asyncio.get_running_loop().call_later(
            0.5, lambda: asyncio.ensure_future(stage.session.interrupt())
        )
        async with stage.session.turn(sample_rate=RATE) as turn:
            async for chunk in trickle(counted(3), speed=1):
                await turn.push(chunk)
            pytest.fail("the turn was interrupted")
        result = await turn.result()
        assert result.interrupted
        async with stage.session.turn(sample_rate=RATE) as turn:
            await turn.end()
            with pytest.raises(TurnClosed, match="ended"):
                await turn.push(b"\0\0")
        assert (await turn.result()).num_frames == 0


# -- what `say` takes


@in_virtual_time
async def test_the_rate_may_change_between_turns(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        first = await stage.session.say(counted(0.5), sample_rate=24_000)
        second = await stage.session.say(counted(0.5), sample_rate=16_000)
        stereo = np.repeat(counted(0.25)[:, None], 2, axis=1)
        third = await stage.session.say(stereo, sample_rate=48_000)
        fourth = await stage.session.say(b"\xff\x7f" * 4_000, sample_rate=8_000, encoding="mulaw")
    assert (first.played_s, second.played_s, third.played_s) == (0.5, 0.75, 0.125)
    assert fourth.played_s == 1.0


async def test_a_media_file_states_its_own_format(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(counted(0.5).tobytes())
    transport = RecordingTransport()
    async with AvatarSession(
        "any", engine=FakeEngine(), transport=transport, clock="unpaced"
    ) as session:
        assert (await session.say(path)).played_s == 0.5
        with pytest.raises(FileNotFoundError):
            await session.say(tmp_path / "none.wav")
        assert (await session.say(str(path))).turn_id == 3
    assert np.array_equal(transport.sound(1), counted(0.5))


@in_virtual_time
async def test_speech_without_a_format_is_refused(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        with pytest.raises(AudioFormatError, match="sample_rate"):
            await stage.session.say(counted(1))
        with pytest.raises(TypeError, match="is no speech"):
            await stage.session.say(3, sample_rate=RATE)
        bad = np.full(24_000, np.nan, np.float32)
        with pytest.raises(AudioFormatError):
            await stage.session.say(bad, sample_rate=RATE)
        assert (await stage.session.say(counted(0.5), sample_rate=RATE)).played_s == 0.5
        stats = stage.session.stats()
    assert (stats.num_turns, stats.num_interrupted) == (3, 2), "the first opened no turn"


@in_virtual_time
async def test_silence_and_nothing_are_speech_too(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        assert (await stage.session.say(b"", sample_rate=RATE)).played_s == 0
        assert (await stage.session.say(bytes(48_000), sample_rate=RATE)).played_s == 1


async def test_nothing_works_before_start_or_after_close() -> None:
    session = AvatarSession("any", engine=FakeEngine(), clock="unpaced")
    for call in (session.frames, session.turn, lambda: session.info, lambda: session.avatar):
        with pytest.raises(SessionNotStarted):
            call()
    with pytest.raises(SessionNotStarted):
        await session.say(b"", sample_rate=RATE)
    assert session.state.value == "closed"
    assert (session.gpu_hours(), session.usage().devices) == (0.0, ())
    async with session:
        assert session.state.value == "idle"
        assert session.avatar.warnings == ()
    for call in (session.frames, session.turn):
        with pytest.raises(SessionClosed):
            call()
    with pytest.raises(SessionClosed):
        await session.interrupt()


# -- latency


@in_virtual_time
async def test_a_turn_begins_with_the_first_frame_that_can_hold_it(open_stage: OpenStage) -> None:
    phases = random.Random(3)
    latencies = []
    async with open_stage() as stage:
        info = stage.engine.info
        for _ in range(100):
            await asyncio.sleep(phases.uniform(0.1, 0.6))
            result = await stage.session.say(counted(0.3), sample_rate=RATE, voice_agent_s=1.42)
            latency = result.latency
            assert latency.voice_agent_s == 1.42
            assert latency.generate_s + latency.decode_s >= info.step_s + info.decode_s - 1e-6
            assert latency.pipeline_s == pytest.approx(result.first_frame_s)
            assert latency.total_s == pytest.approx(1.42 + result.first_frame_s)
            latencies.append(result.first_frame_s)
        assert stage.session.stats().num_stalls == 0
    best, chunk_s = info.step_s + info.decode_s, info.chunk_s
    assert min(latencies) >= best
    # At most the margin, a step that is running and must end, and the wait for a chunk's border.
    assert max(latencies) <= best + 0.008 + info.step_s + chunk_s + 1e-6
    if info.frames_per_chunk == 1:
        assert sorted(latencies)[94] <= 0.150


@in_virtual_time
async def test_a_waiting_turn_counts_its_wait_from_its_first_speech(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        results = await asyncio.gather(
            *(stage.session.say(counted(1), sample_rate=RATE) for _ in range(2))
        )
    assert results[1].first_frame_s == pytest.approx(results[0].first_frame_s + 1)


# -- unpaced


@in_virtual_time
async def test_an_unpaced_timeline_moves_only_for_turns(open_stage: OpenStage) -> None:
    async with open_stage(clock="unpaced") as stage:
        await asyncio.sleep(60)
        assert not stage.transport.sent
        await stage.session.say(counted(1), sample_rate=RATE)
        await asyncio.sleep(60)
        assert len(stage.transport.sent) == 24
        await stage.session.idle(0.5)
        await asyncio.sleep(60)
        assert len(stage.transport.sent) == 36
        slow = await stage.session.say(trickle(counted(1), speed=0.5), sample_rate=RATE)
        assert slow.num_frames == 24
    frames = stage.transport.frames
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert np.array_equal(stage.transport.sound(2), counted(1)), "an unpaced turn has no gaps"


@in_virtual_time
async def test_an_unpaced_session_waits_for_its_takers(open_stage: OpenStage) -> None:
    async with open_stage(RecordingTransport(send_s=0.5), clock="unpaced") as stage:
        reader = stage.session.frames()
        saying = asyncio.create_task(stage.session.say(counted(2), sample_rate=RATE))
        frames = [await anext(reader) for _ in range(48)]
        await saying
        assert stage.session.stats().reader_dropped == 0
    assert np.array_equal(np.concatenate([frame.audio for frame in frames]), counted(2))
    assert np.array_equal(stage.transport.sound(1), counted(2))
    assert stage.session.stats().transport_dropped == 0


@in_virtual_time
async def test_what_nobody_takes_is_warned_of_once() -> None:
    with capture_logs() as events:
        async with AvatarSession("any", engine=FakeEngine()) as session:
            await session.say(counted(1), sample_rate=RATE)
            await session.idle(2)
    assert [event["event"] for event in events] == ["session_frames_discarded"]
    assert session.stats().num_discarded == session.stats().num_frames


# -- the character


@in_virtual_time
async def test_controls_reach_the_engine_and_a_gesture_passes() -> None:
    engine = FakeEngine()
    async with AvatarSession("any", engine=engine) as session:
        session.listening()
        session.set_controls(emotion="happy", gaze=(0.5, 0.0))
        await session.idle(0.5)
        controls = engine.streams[0].controls[-1]
        assert (controls.listening, controls.emotion, controls.gaze) == (True, "happy", (0.5, 0.0))
        before = len(engine.streams[0].controls)
        session.gesture("nod")
        session.gesture("shake")
        await session.idle(2)
        heads = [controls.head for controls in list(engine.streams[0].controls)[before:]]
        with pytest.raises(ValueError, match="must be one of nod, shake, tilt"):
            session.gesture("wave")  # type: ignore[arg-type]
    yaw, pitch, roll = (np.array(axis) for axis in zip(*heads, strict=True))
    assert 5 < np.abs(pitch).max() < 8
    assert 5 < np.abs(yaw).max() < 9
    assert np.abs(np.diff(pitch)).max() < 4, "no jump between two frames"
    assert heads[-1] == (0.0, 0.0, 0.0)
    assert not roll.any()
