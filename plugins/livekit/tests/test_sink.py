"""One report a segment, whatever happens; with LiveKit's own `AudioOutput`, without a room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from livekit.agents.voice.io import AudioOutput, PlaybackFinishedEvent

from livekit import rtc
from livekit.plugins.talking_avatar._character import Looks
from livekit.plugins.talking_avatar._local import LocalHost
from livekit.plugins.talking_avatar._playout import Handing, PlayoutClock
from talking_avatar import Frame
from talking_avatar.errors import EngineFailed
from talking_avatar.testing import FakeEngine

pytestmark = pytest.mark.livekit


def speech(seconds: float, *, rate: int = 24_000) -> list[rtc.AudioFrame]:
    num = round(seconds * rate)
    frames = []
    for at in range(0, num, rate // 20):
        size = min(rate // 20, num - at)
        frames.append(rtc.AudioFrame(b"\x10\x27" * size, rate, 1, size))
    return frames


class Ear:
    """What an output reported."""

    def __init__(self, sink: AudioOutput) -> None:
        self.sink = sink
        self.finished: list[PlaybackFinishedEvent] = []
        self.num_started = 0
        sink.on("playback_finished", self.finished.append)
        sink.on("playback_started", self._note_start)

    def _note_start(self, event: Any) -> None:
        self.num_started += 1

    async def capture(self, frames: list[rtc.AudioFrame]) -> None:
        for frame in frames:
            await self.sink.capture_frame(frame)

    async def playout(self, *, timeout: float = 10.0) -> PlaybackFinishedEvent:
        return await asyncio.wait_for(self.sink.wait_for_playout(), timeout)


class Booth:
    """A character without a room, and who listens to its output."""

    def __init__(self, engine: Any) -> None:
        self.errors: list[tuple[Exception, bool]] = []
        self.host = LocalHost(
            rtc.Room(),
            Looks(photo="any", engine=engine),
            on_turn=lambda metrics: None,
            on_error=lambda error, is_final: self.errors.append((error, is_final)),
        )
        self.ear = Ear(self.host.sink)


@pytest.fixture
async def booth(engine: FakeEngine) -> AsyncIterator[Booth]:
    booth = Booth(engine)
    await booth.host.start()
    yield booth
    await booth.host.aclose()


async def test_a_segment_is_played_whole_and_reported_when_heard(booth: Booth) -> None:
    loop = asyncio.get_running_loop()
    await booth.ear.capture(speech(0.6))
    booth.ear.sink.flush()
    started = loop.time()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(0.6), False)
    assert loop.time() - started >= 0.6  # not when it was handed over: when it was heard
    assert booth.ear.num_started == 1


async def test_a_clear_before_anything_was_read(booth: Booth) -> None:
    """LiveKit's queue output waits for ever here: its reader never saw the segment."""
    await booth.ear.capture(speech(0.05))
    booth.ear.sink.flush()
    booth.ear.sink.clear_buffer()
    event = await booth.ear.playout(timeout=2)
    assert (event.playback_position, event.interrupted) == (0.0, True)
    assert booth.ear.num_started == 0


async def test_two_segments_and_one_clear(booth: Booth) -> None:
    """LiveKit's queue output reports one of the two."""
    for _ in range(2):
        await booth.ear.capture(speech(1.0))
        booth.ear.sink.flush()
    await asyncio.sleep(0.5)
    booth.ear.sink.clear_buffer()
    await booth.ear.playout(timeout=2)
    assert [event.interrupted for event in booth.ear.finished] == [True, True]
    assert sum(event.playback_position > 0 for event in booth.ear.finished) == 1


async def test_an_interruption_comes_as_flush_clear_clear(booth: Booth) -> None:
    await booth.ear.capture(speech(2.0))
    await asyncio.sleep(0.6)
    booth.ear.sink.flush()
    booth.ear.sink.clear_buffer()
    booth.ear.sink.clear_buffer()
    event = await booth.ear.playout(timeout=2)
    assert len(booth.ear.finished) == 1
    assert event.interrupted
    assert 0.0 < event.playback_position < 0.6


async def test_what_comes_after_a_clear_is_dropped_until_the_segment_ends(booth: Booth) -> None:
    await booth.ear.capture(speech(1.0))
    booth.ear.sink.clear_buffer()
    await booth.ear.capture(speech(1.0))
    booth.ear.sink.flush()
    await booth.ear.playout(timeout=2)
    await booth.ear.capture(speech(0.3))
    booth.ear.sink.flush()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(0.3), False)
    assert len(booth.ear.finished) == 2


async def test_a_hundred_interruptions_and_then_a_whole_segment(booth: Booth) -> None:
    for number in range(100):
        await booth.ear.capture(speech(0.5))
        await asyncio.sleep(0.001 * (number % 40))
        if number % 3:
            booth.ear.sink.flush()
        booth.ear.sink.clear_buffer()
        booth.ear.sink.flush()
        booth.ear.sink.clear_buffer()
        event = await booth.ear.playout(timeout=2)
        assert event.interrupted
        assert event.playback_position <= 0.5
    await booth.ear.capture(speech(0.4))
    booth.ear.sink.flush()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(0.4), False)
    assert len(booth.ear.finished) == 101


async def test_positions_are_what_was_heard(booth: Booth, sounding: Any) -> None:
    """What sounded until the clear, and no more: not what was handed over."""
    for wait_s in (0.2, 0.35, 0.61):
        started = asyncio.Event()
        booth.ear.sink.once("playback_started", lambda event, started=started: started.set())
        await booth.ear.capture(speech(2.0))
        await started.wait()
        await asyncio.sleep(wait_s)
        booth.ear.sink.flush()
        booth.ear.sink.clear_buffer()
        sounded_s = sounding.last_s
        event = await booth.ear.playout(timeout=2)
        assert event.playback_position == pytest.approx(sounded_s, abs=0.05)


async def test_pause_and_resume_lose_nothing(booth: Booth) -> None:
    await booth.ear.capture(speech(0.8))
    booth.ear.sink.flush()
    await asyncio.sleep(0.4)
    booth.ear.sink.pause()
    await asyncio.sleep(0.5)
    assert not booth.ear.finished
    booth.ear.sink.resume()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(0.8), False)


async def test_a_pause_holds_back_what_has_not_begun(booth: Booth) -> None:
    """LiveKit pauses before the first frame when the user speaks at that moment."""
    booth.ear.sink.pause()
    await booth.ear.capture(speech(0.2))
    booth.ear.sink.flush()
    await asyncio.sleep(0.6)
    assert booth.ear.num_started == 0
    booth.ear.sink.resume()
    event = await booth.ear.playout()
    assert event.playback_position == pytest.approx(0.2)


async def test_a_clear_in_a_pause_reports_at_once(booth: Booth) -> None:
    booth.ear.sink.pause()
    await booth.ear.capture(speech(0.2))
    booth.ear.sink.flush()
    booth.ear.sink.clear_buffer()
    assert (await booth.ear.playout(timeout=2)).interrupted


async def test_speech_that_comes_while_the_engine_starts_is_said(engine: FakeEngine) -> None:
    booth = Booth(engine)
    await booth.ear.capture(speech(0.3))
    booth.ear.sink.flush()
    await booth.host.start()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(0.3), False)
    await booth.host.aclose()


async def test_a_clear_while_the_engine_starts_reports_at_once(engine: FakeEngine) -> None:
    booth = Booth(engine)
    await booth.ear.capture(speech(0.3))
    booth.ear.sink.flush()
    booth.ear.sink.clear_buffer()
    assert (await booth.ear.playout(timeout=2)).interrupted
    await booth.host.aclose()


async def test_closing_reports_what_is_open_and_what_still_comes(booth: Booth) -> None:
    await booth.ear.capture(speech(2.0))
    await asyncio.sleep(0.5)
    await booth.host.aclose()
    booth.ear.sink.flush()
    event = await booth.ear.playout(timeout=2)
    assert event.interrupted
    assert 0.0 < event.playback_position <= 0.5
    await booth.ear.capture(speech(0.2))
    booth.ear.sink.flush()
    assert (await booth.ear.playout(timeout=2)).interrupted
    assert len(booth.ear.finished) == 2
    await booth.host.aclose()


async def test_an_engine_that_fails_ends_the_segment_and_starts_again() -> None:
    """LiveKit's runner logs it and waits for ever."""
    fails = {"left": 1}

    def script(number: int) -> float:
        if number == 20 and fails["left"]:
            fails["left"] -= 1
            raise RuntimeError("out of memory")
        return 0.015

    booth = Booth(FakeEngine(step_s=script, width=64, height=96))
    await booth.host.start()
    await booth.ear.capture(speech(3.0))
    booth.ear.sink.flush()
    assert (await booth.ear.playout(timeout=5)).interrupted
    await booth.ear.capture(speech(0.3))
    booth.ear.sink.flush()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(0.3), False)
    assert [(type(error), is_final) for error, is_final in booth.errors] == [(EngineFailed, False)]
    await booth.host.aclose()


async def test_an_engine_that_always_fails_is_given_up_and_wedges_nobody() -> None:
    def script(number: int) -> float:
        if number >= 10:
            raise RuntimeError("broken")
        return 0.005

    booth = Booth(FakeEngine(step_s=script, width=64, height=96))
    await booth.host.start()
    for _ in range(6):
        await booth.ear.capture(speech(1.0))
        booth.ear.sink.flush()
        assert (await booth.ear.playout(timeout=5)).interrupted
        await asyncio.sleep(0.2)
    assert [is_final for _, is_final in booth.errors] == [False, False, False, True]
    await booth.host.aclose()


@pytest.mark.parametrize("stall_s", [0.1, 0.25, 0.4, 1.0])
async def test_a_stall_neither_loses_speech_nor_parts_picture_from_sound(
    stall_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiveKit's synchronizer leaves the sound 95 ms behind for good after one of 250 ms."""

    def script(number: int) -> float:
        return stall_s + 0.125 if number == 30 else 0.005  # beyond the three frames made ahead

    pairs: list[tuple[float, float]] = []  # a picture is due, and its sound begins
    queue_ends = 0.0
    hand_over = PlayoutClock.hand_over

    def handing(clock: PlayoutClock, frame: Frame, now: float) -> Handing:
        nonlocal queue_ends
        handing = hand_over(clock, frame, now)
        sound_at = max(now, queue_ends) + handing.num_silent / 24_000
        queue_ends = sound_at + (1_000 - handing.num_left_out) / 24_000
        pairs.append((handing.heard_at, sound_at))
        return handing

    monkeypatch.setattr(PlayoutClock, "hand_over", handing)
    booth = Booth(FakeEngine(step_s=script, width=64, height=96))
    await booth.host.start()
    await booth.ear.capture(speech(2.0))
    booth.ear.sink.flush()
    event = await booth.ear.playout()
    assert (event.playback_position, event.interrupted) == (pytest.approx(2.0), False)
    assert booth.host.stats().num_stalls >= 1
    assert len(pairs) > 48
    assert max(abs(picture - sound) for picture, sound in pairs) < 0.001
    await booth.host.aclose()


async def test_a_failed_start_raises_and_leaves_nothing(engine: FakeEngine) -> None:
    before = asyncio.all_tasks()
    booth = Booth("portrait")
    with pytest.raises(Exception, match="any"):
        await booth.host.start()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_start_can_be_cancelled_at_any_time(engine: FakeEngine) -> None:
    before = asyncio.all_tasks()
    for num_steps in range(12):
        booth = Booth(engine)
        starting = asyncio.create_task(booth.host.start())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting], timeout=5)
        assert starting.cancelled() or starting.exception() is None
        await booth.host.aclose()
    assert asyncio.all_tasks() == before


async def test_capture_can_be_cancelled_at_any_time(booth: Booth) -> None:
    async def speak() -> None:
        await booth.ear.capture(speech(0.5))
        booth.ear.sink.flush()
        await booth.ear.sink.wait_for_playout()

    for num_steps in range(20):
        speaking = asyncio.create_task(speak())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        speaking.cancel()
        await asyncio.wait([speaking], timeout=5)
        assert speaking.cancelled()
        booth.ear.sink.flush()
        booth.ear.sink.clear_buffer()
        await booth.ear.playout(timeout=2)
    num_captured = booth.ear.sink.captured_playout_segments
    assert len(booth.ear.finished) == num_captured


async def test_any_rate_and_channel_count_comes_out_at_its_own_length(booth: Booth) -> None:
    for rate in (8_000, 16_000, 22_050, 44_100, 48_000):
        await booth.ear.capture(speech(0.25, rate=rate))
        booth.ear.sink.flush()
        event = await booth.ear.playout()
        assert event.playback_position == pytest.approx(0.25, abs=1e-3)
    stereo = rtc.AudioFrame(b"\x10\x27" * 9_600, 24_000, 2, 4_800)
    await booth.ear.capture([stereo])
    booth.ear.sink.flush()
    assert (await booth.ear.playout()).playback_position == pytest.approx(0.2)


async def test_a_format_that_changes_within_a_segment_is_refused(booth: Booth) -> None:
    await booth.ear.capture(speech(0.1))
    with pytest.raises(ValueError, match=r"24000.*16000"):
        await booth.ear.capture(speech(0.1, rate=16_000))


async def test_more_speech_than_fits_waits_for_the_engine_and_a_clear_frees_it(
    engine: FakeEngine,
) -> None:
    booth = Booth(engine)
    capturing = asyncio.create_task(booth.ear.capture(speech(31.0)))
    await asyncio.sleep(0.2)
    assert not capturing.done()
    booth.ear.sink.flush()
    booth.ear.sink.clear_buffer()
    await asyncio.wait_for(capturing, 2)
    await booth.host.aclose()
