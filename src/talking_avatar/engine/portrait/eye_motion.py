"""Blinks and gaze: when they come, and how they run, frame by frame.

Takes: whether someone speaks, listens or has just paused. Gives: lids and iris.
Never jumps: lids and iris move over two frames or more. Its state is a frozen value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from talking_avatar.engine.base import FPS
from talking_avatar.engine.portrait.dice import log_normal, normal, uniform

_LIDS = (0.0, 0.55, 1.0, 0.62, 0.2, 0.04, 0.0)
"""A blink at 24 fps: down in 80 ms, half up 60 ms later; lids fall faster than they rise."""
_DOUBLE = 0.12
"""Part of the blinks that come twice."""
_BLINK_AT_PAUSE = 0.45
"""People often blink where a phrase ends: this part of the pauses has one."""
_SACCADE = (0.0, 0.55, 0.92, 1.0)
"""Way of the iris to its new place: about 100 ms with the settling."""


@dataclass(frozen=True, slots=True)
class Attention:
    """What the eyes react to in one frame."""

    talking: bool
    pausing: bool
    listening: bool


@dataclass(frozen=True, slots=True)
class Blinking:
    """When the current blink began and when the next one is due, in frames.

    Of a double blink, ``num_left`` is 1 until the second one begins.
    """

    number: int = 0
    began: int = -1_000
    due: int = 40
    num_left: int = 0


def step_blinking(
    state: Blinking, seed: int, frame: int, attention: Attention
) -> tuple[Blinking, float]:
    """Advance by a frame; gives how far the lids are closed, 0 to 1."""
    age = frame - state.began
    wants = frame >= state.due or (
        attention.pausing and age > FPS and uniform(seed, "blink at pause", frame) < _BLINK_AT_PAUSE
    )
    if wants and age >= len(_LIDS) - 1:
        state = _begin_blink(state, seed, frame, attention)
        age = 0
    return state, _LIDS[age] if 0 <= age < len(_LIDS) else 0.0


def _begin_blink(state: Blinking, seed: int, frame: int, attention: Attention) -> Blinking:
    number = state.number + 1
    if state.num_left == 0 and uniform(seed, "double blink", number) < _DOUBLE:
        return Blinking(number, frame, frame + len(_LIDS) + 1, 1)
    median_s = 3.0 if attention.talking else 3.6
    wait_s = log_normal(seed, "blink", number, median=median_s, spread=0.42)
    return Blinking(number, frame, frame + round(min(7.0, max(1.2, wait_s)) * FPS), 0)


@dataclass(frozen=True, slots=True)
class Gaze:
    """The current fixation and the way to it; frames, and iris positions as in `FaceState`."""

    number: int = 0
    began: int = -1_000
    due: int = 30
    origin: tuple[float, float] = (0.0, 0.0)
    goal: tuple[float, float] = (0.0, 0.0)


def step_gaze(
    state: Gaze, seed: int, frame: int, attention: Attention
) -> tuple[Gaze, tuple[float, float]]:
    """Advance by a frame; gives where the iris is."""
    if frame >= state.due:
        wait_s = log_normal(seed, "fixation", state.number, median=1.3, spread=0.5)
        wait_s *= 2.0 if attention.listening else 1.0
        state = Gaze(
            state.number + 1,
            frame,
            frame + max(8, round(wait_s * FPS)),
            state.goal,
            _next_goal(seed, state.number, attention),
        )
    part = _SACCADE[min(frame - state.began, len(_SACCADE) - 1)]
    (from_x, from_y), (to_x, to_y) = state.origin, state.goal
    return state, (from_x + part * (to_x - from_x), from_y + part * (to_y - from_y))


def _next_goal(seed: int, number: int, attention: Attention) -> tuple[float, float]:
    """Mostly the other person's eyes or mouth; now and then a glance aside."""
    reach = 0.35 if attention.listening else 1.0
    aside = uniform(seed, "glance", number) < 0.22
    spread_x, spread_y = (0.2, 0.1) if aside else (0.07, 0.05)
    x = normal(seed, "gaze x", number) * spread_x * reach
    y = normal(seed, "gaze y", number) * spread_y * reach
    return x, y


@dataclass(frozen=True, slots=True)
class Eyes:
    """All that eyes remember."""

    blinking: Blinking = field(default_factory=Blinking)
    gaze: Gaze = field(default_factory=Gaze)


def step_eyes(
    state: Eyes, seed: int, frame: int, attention: Attention
) -> tuple[Eyes, float, tuple[float, float]]:
    """Advance by a frame; gives lids (0 open, 1 closed) and iris."""
    blinking, lids = step_blinking(state.blinking, seed, frame, attention)
    gaze, iris = step_gaze(state.gaze, seed, frame, attention)
    return Eyes(blinking, gaze), lids, iris
