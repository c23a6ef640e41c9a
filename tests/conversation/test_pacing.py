"""Deadlines, causes and how far to rewind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talking_avatar.engine.base import FPS, EngineInfo, FrameBlock
from talking_avatar.pacing import LATE_S, MARGIN_S, Pacer, Stall, late_cause, missed_cause


def info(per_chunk: int = 1, step_s: float = 0.015, decode_s: float = 0.0) -> EngineInfo:
    return EngineInfo(
        name="fake",
        width=16,
        height=16,
        frames_per_chunk=per_chunk,
        lookahead_samples=2_880,
        pipeline_depth=3,
        step_s=step_s,
        decode_s=decode_s,
    )


def block(generate_s: float, decode_s: float = 0.0) -> FrameBlock:
    return FrameBlock(0, np.zeros((1, 2, 2, 3), np.uint8), generate_s, decode_s)


# -- the grid


def test_an_hour_later_a_frame_is_due_an_hour_later() -> None:
    pacer = Pacer(info(), start=1e6)
    assert pacer.due(3600 * FPS) == 1e6 + 3600
    pacer.begin(5.0)
    assert pacer.due(0) == 5.0


@pytest.mark.parametrize(
    ("late_s", "num_frames"),
    [(0.0, 0), (LATE_S - 1e-4, 0), (0.011, 1), (0.1, 3), (0.25, 6), (0.4, 10), (1.0, 24)],
)
def test_a_stall_is_a_whole_number_of_frames_and_moves_all_that_follow(
    late_s: float, num_frames: int
) -> None:
    pacer = Pacer(info(), start=0.0)
    before = pacer.due(100)
    stall = pacer.stall(24, pacer.due(24) + late_s)
    assert stall == (Stall(24, num_frames) if num_frames else None)
    assert pacer.due(100) == pytest.approx(before + num_frames / FPS)
    assert pacer.stalled_frames == num_frames


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 2)), max_size=40))
def test_the_grid_never_goes_back_and_never_waits_longer_than_it_must(
    events: list[tuple[int, float]],
) -> None:
    pacer = Pacer(info(), start=0.0)
    frame, now = 0, 0.0
    for num_shown, late_s in events:
        frame += num_shown
        now = max(now, pacer.due(frame)) + late_s
        stall = pacer.stall(frame, now)
        assert pacer.due(frame) >= now - LATE_S - 1e-9
        if stall is not None:
            assert pacer.due(frame) < now - LATE_S + 1 / FPS + 1e-9
    assert (pacer.due(frame) * FPS - frame) == pytest.approx(pacer.stalled_frames)


def test_a_chunk_is_planned_early_enough_to_be_made() -> None:
    pacer = Pacer(info(4, 0.15, 0.1), start=0.0)
    assert pacer.plan_by(6) == pytest.approx(1.0 - 0.25 - MARGIN_S)


# -- what is learned of the engine


def test_the_pace_is_what_all_but_the_slowest_tenth_take() -> None:
    pacer = Pacer(info(4, 0.15, 0.1), start=0.0)
    for number in range(40):
        slow = number % 20 == 0
        pacer.observe(block(0.4 if slow else 0.12, 0.1), service_s=0.5 if slow else 0.22)
    assert pacer.pace.step_s == pytest.approx(0.12)
    assert pacer.pace.decode_s == pytest.approx(0.1)


def test_waiting_that_the_engine_does_not_see_counts_as_its_step() -> None:
    pacer = Pacer(info(), start=0.0)
    pacer.observe(block(0.015), service_s=0.040)
    assert pacer.pace.step_s == pytest.approx(0.040)


def test_an_engine_slower_than_real_time_refills_its_pipeline() -> None:
    pacer = Pacer(info(), start=0.0)
    assert pacer.refill_chunks == 1
    for _ in range(32):
        pacer.observe(block(0.046), service_s=0.046)
    assert pacer.refill_chunks == 3


# -- how far to rewind


def test_a_quick_engine_shows_the_new_picture_with_the_next_frame() -> None:
    pacer = Pacer(info(), start=0.0)
    just_shown = pacer.due(9) + 0.001
    assert pacer.keep(next_frame=10, now=just_shown, unfinished=()) == 9
    just_before = pacer.due(10) - 0.010
    assert pacer.keep(next_frame=10, now=just_before, unfinished=()) == 10


def test_a_step_that_is_running_must_end_first() -> None:
    pacer = Pacer(info(), start=0.0)
    now = pacer.due(10) - 0.030
    assert pacer.keep(next_frame=10, now=now, unfinished=()) == 9
    assert pacer.keep(next_frame=10, now=now, unfinished=(11,)) == 10


def test_before_the_first_frame_all_can_go() -> None:
    pacer = Pacer(info(), start=1.0)
    assert pacer.keep(next_frame=0, now=0.5, unfinished=(0, 1)) == -1


@settings(derandomize=True)
@given(
    per_chunk=st.sampled_from([1, 2, 4]),
    load=st.floats(0.02, 0.95),
    decode=st.floats(0, 1),
    next_frame=st.integers(0, 200),
    phase=st.floats(0, 1, exclude_max=True),
)
def test_a_rewind_makes_no_stall_and_keeps_no_more_than_it_says(
    per_chunk: int, load: float, decode: float, next_frame: int, phase: float
) -> None:
    engine = info(per_chunk, load * per_chunk / FPS, decode * per_chunk / FPS)
    pacer = Pacer(engine, start=0.0)
    now = pacer.due(next_frame) - phase / FPS
    kept = pacer.keep(next_frame=next_frame, now=now, unfinished=())
    first = (kept + 1) * per_chunk
    assert first >= next_frame
    assert first - next_frame <= engine.barge_in_frames
    assert now + engine.step_s + engine.decode_s <= pacer.due(first) + 1e-9


def test_an_engine_that_became_slower_may_run_on_for_longer() -> None:
    pacer = Pacer(info(), start=0.0)
    for _ in range(32):
        pacer.observe(block(0.110), service_s=0.110)
    kept = pacer.keep(next_frame=10, now=pacer.due(10), unfinished=())
    assert pacer.due(kept + 1) >= pacer.due(10) + 0.110


# -- causes


@pytest.mark.parametrize(
    ("woken", "taken", "was_behind", "cause"),
    [
        (0.0, 0.010, False, None),
        (0.05, 0.05, False, "blocked_loop"),
        (0.05, 0.05, True, "blocked_loop"),
        (0.001, 0.02, True, "consumer"),
        (0.001, 0.02, False, "hand_over"),
    ],
)
def test_why_a_frame_was_late(
    woken: float, taken: float, was_behind: bool, cause: str | None
) -> None:
    assert late_cause(due=0.0, woken=woken, taken=taken, was_behind=was_behind) == cause


@pytest.mark.parametrize(
    ("ready", "decode_s", "was_blocked", "cause"),
    [
        (0.0, 0.0, True, None),
        (0.1, 0.0, False, "generate"),
        (0.1, 0.05, False, "generate"),
        (0.1, 0.1, False, "decode"),
        (0.1, 0.1, True, "blocked_loop"),
    ],
)
def test_why_a_chunk_was_missed(
    ready: float, decode_s: float, was_blocked: bool, cause: str | None
) -> None:
    got = missed_cause(due=0.0, ready=ready, decode_s=decode_s, was_blocked=was_blocked)
    assert got == cause
