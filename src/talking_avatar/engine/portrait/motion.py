"""A living head: sway, breath, nods, brows, blinks, gaze, and what the controls ask for.

Takes: per frame, how loud and whether someone speaks, and the caller's `Controls`.
Gives: a `FaceState` whose mouth is at rest; what the expression asks of the mouth is in
`Motion.asked`.
Never jumps: everything is a sum of smooth noise, springs and low-passes, so that idle, talk and
idle again have no seam, and a control that steps is followed in about a third of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import pi, sin

from talking_avatar.engine.base import FPS, Controls
from talking_avatar.engine.portrait.asked import REST, Asked, Spring
from talking_avatar.engine.portrait.dice import drift, log_normal, normal, uniform
from talking_avatar.engine.portrait.eye_motion import Attention, Eyes, step_eyes
from talking_avatar.engine.portrait.face import FaceState

_SWAY = {
    # Degrees; head heights for shifts. (noise at rest, more of it while talking)
    "yaw": (1.2, 0.7),
    "pitch": (0.7, 0.4),
    "roll": (0.7, 0.4),
    "shift_x": (0.0045, 0.002),
    "shift_y": (0.0025, 0.0015),
}
_OCTAVES = ((2.6, 1.0), (1.1, 0.35))
"""(seconds between knots, weight) of sway. Heads hardly move above 1 Hz except in a nod."""
_TALK_OCTAVE = (0.55, 0.28)
_NOD_FRAMES, _LIFT_FRAMES = 6, 10
_MAX_TURN_DEG = 8.0
_EYES_COUNTER_HEAD = 0.03
"""Iris per degree: eyes hold what they look at while the head sways."""


@dataclass(frozen=True, slots=True)
class Sound:
    """What motion needs to know of one frame's sound.

    Attributes:
        voice: 0 to 1: someone speaks.
        loudness: 0 to 1: against the loudest of this speaker.
    """

    voice: float
    loudness: float


@dataclass(frozen=True, slots=True)
class Motion:
    """All that the head remembers. A frozen value: keep one to come back to it.

    Attributes:
        frame: Frames since the start.
        talk: Whether talking, smoothed: the head moves more.
        loud: Loudness, smoothed slowly: what an emphasis stands out from.
        listen: Whether listening, smoothed.
        was_voiced: For pauses: voice in the frame before.
        nod: Degrees of pitch; drawn to ``nod_goal`` until the frame ``nod_until``.
        num_nods, next_nod: Nods so far, and the frame before which there is no other.
        lift, lift_until: Brows raised by emphasis, and until which frame.
        breath_phase: In breaths.
    """

    frame: int = 0
    talk: Spring = REST
    loud: float = 0.0
    listen: Spring = REST
    was_voiced: bool = False
    nod: Spring = REST
    nod_goal: float = 0.0
    nod_until: int = 0
    num_nods: int = 0
    next_nod: int = FPS
    lift: Spring = REST
    lift_until: int = 0
    breath_phase: float = 0.0
    eyes: Eyes = field(default_factory=Eyes)
    asked: Asked = field(default_factory=Asked)


def sway(seed: int, name: str, time_s: float, talk: float) -> float:
    """One part of the head's idle motion, larger and livelier while talking."""
    rest, more = _SWAY[name]
    slow = sum(w * drift(seed, f"{name} {k}", time_s, k) for k, w in _OCTAVES)
    lively = _TALK_OCTAVE[1] * drift(seed, f"{name} talk", time_s, _TALK_OCTAVE[0])
    return (rest + more * talk) * slow + 2.0 * rest * talk * lively


def _step_nods(state: Motion, seed: int, sound: Sound, controls: Controls) -> Motion:
    """Nod and lift brows where speech is stressed; nod to what is heard while listening."""
    frame, number = state.frame, state.num_nods
    stressed = sound.voice > 0.5 and sound.loudness > state.loud + 0.12
    attentive = controls.listening and sound.voice < 0.5
    if frame >= state.next_nod and (stressed or attentive):
        state = _begin_nod(state, seed, attentive=attentive)
        if stressed and uniform(seed, "lift", number) < 0.3:
            state = replace(state, lift_until=frame + _LIFT_FRAMES)
    return replace(
        state,
        nod=state.nod.step(state.nod_goal if frame < state.nod_until else 0.0, 0.38),
        lift=state.lift.step(0.45 if frame < state.lift_until else 0.0, 0.3),
    )


def _begin_nod(state: Motion, seed: int, *, attentive: bool) -> Motion:
    number = state.num_nods
    size_deg = max(0.5, 1.7 + 0.6 * normal(seed, "nod", number))
    wait_s = log_normal(seed, "nod wait", number, median=0.9, spread=0.5)
    if attentive:
        size_deg, wait_s = 1.5 * size_deg, 2.6 * wait_s + 0.5
    return replace(
        state,
        num_nods=number + 1,
        nod_goal=size_deg,
        nod_until=state.frame + _NOD_FRAMES,
        next_nod=state.frame + round(max(0.5, wait_s) * FPS),
    )


def breath_of(phase: float) -> float:
    """Shoulders over one breath: in faster than out."""
    angle = 2.0 * pi * phase
    return sin(angle - 0.4 * sin(angle))


def step(state: Motion, seed: int, sound: Sound, controls: Controls) -> tuple[Motion, FaceState]:
    """Advance by a frame; gives the face with its mouth at rest."""
    attention = Attention(
        talking=state.talk.value > 0.5,
        pausing=state.was_voiced and sound.voice < 0.4,
        listening=controls.listening,
    )
    eyes, lids, iris = step_eyes(state.eyes, seed, state.frame, attention)
    time_s = state.frame / FPS
    pace = 0.24 * (1.0 + 0.25 * drift(seed, "breath", time_s, 4.0))
    state = replace(
        _step_nods(state, seed, sound, controls),
        talk=state.talk.step(sound.voice, 0.9),
        loud=state.loud + (sound.loudness - state.loud) * (0.08 if sound.voice > 0.5 else 0.0),
        listen=state.listen.step(float(controls.listening), 0.8),
        was_voiced=sound.voice >= 0.4,
        breath_phase=state.breath_phase + pace / FPS,
        eyes=eyes,
        asked=state.asked.step(controls),
    )
    face = _compose(state, seed, time_s, lids, iris)
    return replace(state, frame=state.frame + 1), face


def _compose(
    state: Motion, seed: int, time_s: float, lids: float, iris: tuple[float, float]
) -> FaceState:
    asked, calm = state.asked, 1.0 - 0.35 * state.listen.value
    moved = {name: calm * sway(seed, name, time_s, state.talk.value) for name in _SWAY}
    yaw = _within(moved["yaw"] + asked.yaw.value)
    pitch = _within(
        moved["pitch"] + state.nod.value + asked.pitch.value + asked.expression_pitch.value
    )
    breath = breath_of(state.breath_phase)
    lids += asked.blink_weight.value * (asked.blink.value - lids)
    gaze_x = iris[0] - _EYES_COUNTER_HEAD * moved["yaw"]
    gaze_y = iris[1] - _EYES_COUNTER_HEAD * (moved["pitch"] + state.nod.value)
    gaze_x += asked.gaze_weight.value * (asked.gaze_x.value - gaze_x)
    gaze_y += asked.gaze_weight.value * (asked.gaze_y.value - gaze_y)
    return FaceState(
        blink_left=_within(lids, 0.0, 1.0),
        blink_right=_within(lids, 0.0, 1.0),
        gaze_x=_within(gaze_x, -1.0, 1.0),
        gaze_y=_within(gaze_y, -1.0, 1.0),
        brow=_within(
            state.lift.value + asked.brow.value + 0.06 * drift(seed, "brow", time_s, 1.5), -1.0, 1.0
        ),
        yaw=yaw,
        pitch=pitch,
        roll=_within(moved["roll"] + asked.roll.value),
        shift_x=moved["shift_x"],
        shift_y=moved["shift_y"] - 0.0012 * breath,
        breath=breath,
    )


def _within(value: float, low: float = -_MAX_TURN_DEG, high: float = _MAX_TURN_DEG) -> float:
    return min(high, max(low, value))
