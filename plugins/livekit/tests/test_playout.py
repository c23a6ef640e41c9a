import numpy as np
import pytest

from livekit.plugins.talking_avatar._playout import LEAD_S, MOST_LEAD_S, PlayoutClock
from talking_avatar import Frame

FRAME_S = 1_000 / 24_000


def frame(index: int, *, speaking: bool = True) -> Frame:
    image = np.zeros((3, 2), np.uint8)
    audio = np.full(1_000, speaking, np.int16)
    return Frame(index, image, audio, index / 24, 1 if speaking else None, speaking)


def test_the_first_frame_is_heard_after_the_lead() -> None:
    clock = PlayoutClock()
    handing = clock.hand_over(frame(0), 10.0)
    assert handing.num_silent == round(LEAD_S * 24_000)
    assert handing.heard_at == pytest.approx(10.0 + LEAD_S)
    assert clock.position_s(10.0) == 0.0
    assert clock.position_s(10.0 + LEAD_S + 0.02) == pytest.approx(0.02)
    assert clock.position_s(20.0) == pytest.approx(FRAME_S)


def test_frames_on_time_keep_the_depth_and_need_no_silence() -> None:
    clock = PlayoutClock()
    for index in range(10_000):
        now = index / 24
        handing = clock.hand_over(frame(index), now)
        assert handing.num_silent == (round(LEAD_S * 24_000) if index == 0 else 0)
        assert handing.heard_at == pytest.approx(now + LEAD_S, abs=1e-6)


@pytest.mark.parametrize("stall_s", [0.1, 0.25, 0.4, 1.0])
def test_after_a_stall_the_picture_is_shown_with_its_own_sound(stall_s: float) -> None:
    """However long the queue ran dry, each picture is due when its first sample is heard."""
    clock = PlayoutClock()
    queued_until, now = 0.0, 0.0
    for index in range(100):
        now = index / 24 + (stall_s if index >= 50 else 0.0)
        handing = clock.hand_over(frame(index), now)
        starts = max(queued_until, now) + handing.num_silent / 24_000
        assert handing.heard_at == pytest.approx(starts, abs=1e-4)
        queued_until = starts + FRAME_S
    assert clock.depth_s(now) == pytest.approx(LEAD_S + FRAME_S, abs=0.03)


def test_depth_that_grew_is_taken_back_in_silence_and_never_from_speech() -> None:
    clock = PlayoutClock()
    for index in range(3):
        assert not clock.hand_over(frame(index), 0.0).num_left_out
    assert clock.depth_s(0.0) == pytest.approx(LEAD_S + 3 * FRAME_S)
    for index in range(3, 10):
        handing = clock.hand_over(frame(index, speaking=False), (index - 2) * FRAME_S)
        assert handing.num_left_out == (1_000 if index < 5 else 0)
    assert LEAD_S + FRAME_S <= clock.depth_s(7 * FRAME_S) + 1e-9 <= MOST_LEAD_S + FRAME_S


def test_a_clear_stops_the_position_where_it_was_heard() -> None:
    clock = PlayoutClock()
    clock.hand_over(frame(0), 0.0)
    clock.hand_over(frame(1), FRAME_S)
    clock.clear(LEAD_S + 0.05)
    assert clock.position_s(9.0) == pytest.approx(0.05)
    clock.hand_over(frame(2), 9.0)
    assert clock.position_s(9.0) == pytest.approx(0.05)
    assert clock.position_s(9.0 + LEAD_S) == pytest.approx(2 * FRAME_S)


def test_the_position_never_goes_back() -> None:
    rng = np.random.default_rng(7)
    clock, now, before = PlayoutClock(), 0.0, 0.0
    for index in range(2_000):
        now += rng.exponential(FRAME_S)
        if rng.random() < 0.05:
            clock.clear(now)
        clock.hand_over(frame(index, speaking=bool(rng.random() < 0.5)), now)
        position = clock.position_s(now)
        assert before <= position <= (index + 1) * FRAME_S + 1e-9
        before = position
