"""A head that lives: natural rates, no jumps, obedient to controls, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from talking_avatar.engine.base import FPS, Controls
from talking_avatar.engine.portrait import dice, motion
from talking_avatar.engine.portrait.face import FaceState

MOVES = ("yaw", "pitch", "roll", "shift_x", "shift_y", "breath", "brow")
# Largest step in one frame that still reads as motion, not as a cut: degrees, head heights, 1.
LARGEST_STEP = {
    "yaw": 0.6,
    "pitch": 0.8,
    "roll": 0.6,
    "shift_x": 0.002,
    "shift_y": 0.002,
    "breath": 0.16,
    "brow": 0.13,
    "gaze_x": 0.6,
    "gaze_y": 0.6,
    "blink_left": 0.6,
}


def speech_at(frame: int) -> motion.Sound:
    """Three seconds of syllables, one of silence."""
    voice = float(frame % (4 * FPS) < 3 * FPS)
    return motion.Sound(voice, voice * (0.5 + 0.5 * np.sin(frame * 1.3)))


def silence_at(frame: int) -> motion.Sound:
    return motion.Sound(0.0, 0.0)


def live(
    seconds: float,
    *,
    seed: int = 0,
    sound: Callable[[int], motion.Sound] = silence_at,
    controls: Callable[[int], Controls] = lambda frame: Controls(),
) -> list[FaceState]:
    state, faces = motion.Motion(), []
    for frame in range(round(seconds * FPS)):
        state, face = motion.step(state, seed, sound(frame), controls(frame))
        faces.append(face)
    return faces


def track(faces: list[FaceState], name: str) -> npt.NDArray[np.float64]:
    return np.array([getattr(face, name) for face in faces])


def blink_starts(faces: list[FaceState]) -> npt.NDArray[np.int64]:
    lids = track(faces, "blink_left")
    return np.flatnonzero((lids[1:] > 0.3) & (lids[:-1] <= 0.3))


@pytest.mark.parametrize("sound", [silence_at, speech_at])
def test_blinks_come_as_people_blink(sound: Callable[[int], motion.Sound]) -> None:
    intervals_s: list[float] = []
    for seed in range(4):
        faces = live(120, seed=seed, sound=sound)
        starts = blink_starts(faces)
        assert 10 <= len(starts) / 2 <= 30
        intervals_s += list(np.diff(starts) / FPS)
        lids = track(faces, "blink_left")
        for start in starts:
            shut = lids[start : start + 8]
            assert shut.max() == 1.0, "a blink that does not close is a twitch"
            assert 2 <= (shut > 0.5).sum() <= 4
    single = [s for s in intervals_s if s > 0.6]
    assert 2.0 <= np.median(single) <= 6.0
    assert np.std(np.log(single)) > 0.25, "blinks must not tick like a clock"
    assert 0.03 <= 1 - len(single) / len(intervals_s) <= 0.25, "some come in pairs"


@pytest.mark.parametrize("sound", [silence_at, speech_at])
def test_nothing_jumps(sound: Callable[[int], motion.Sound]) -> None:
    for seed in range(3):
        faces = live(90, seed=seed, sound=sound)
        for name, largest in LARGEST_STEP.items():
            steps = np.abs(np.diff(track(faces, name)))
            assert 0.0 < steps.max() <= largest, name


def test_the_head_sways_slowly_and_without_a_period() -> None:
    yaw = track(live(240), "yaw")
    yaw -= yaw.mean()
    assert 0.4 <= yaw.std() <= 2.0
    power = np.square(np.abs(np.fft.rfft(yaw * np.hanning(len(yaw)))))
    hz = np.fft.rfftfreq(len(yaw), 1 / FPS)
    assert power[hz > 1.5].sum() / power.sum() < 0.01
    assert power.max() / power.sum() < 0.25, "one line in the spectrum is a pendulum"


def test_talking_moves_the_head_more_and_nods() -> None:
    idle, talk = live(180), live(180, sound=speech_at)
    for name in ("yaw", "pitch"):
        assert 1.2 < track(talk, name).std() / track(idle, name).std() < 4.0
    assert track(talk, "brow").max() > 0.3 > track(idle, "brow").max()


def test_idle_talk_idle_has_no_seam() -> None:
    def sound(frame: int) -> motion.Sound:
        return speech_at(frame) if 10 * FPS <= frame < 20 * FPS else silence_at(frame)

    faces = live(30, sound=sound)
    for name in MOVES:
        steps = np.abs(np.diff(track(faces, name)))
        inside = steps[11 * FPS : 19 * FPS].max()
        for seam in (10 * FPS, 20 * FPS):
            assert steps[seam - 2 : seam + 8].max() <= inside * 1.05


def test_the_first_second_is_as_steady_as_the_rest() -> None:
    lives = [live(60, seed=seed) for seed in range(6)]
    for name in MOVES:
        steps = np.array([np.abs(np.diff(track(faces, name))) for faces in lives])
        assert steps[:, :FPS].max() <= steps[:, FPS:].max()
        assert steps[:, :FPS].mean() <= 1.6 * steps[:, FPS:].mean()


def test_listening_nods_and_holds_the_gaze() -> None:
    idle = live(120)
    heard = live(120, controls=lambda frame: Controls(listening=True))
    nods = np.diff(track(heard, "pitch"))
    assert (nods > 0.2).sum() > 20 > (np.diff(track(idle, "pitch")) > 0.2).sum()
    steady = track(heard, "gaze_x") + 0.03 * track(heard, "yaw")
    free = track(idle, "gaze_x") + 0.03 * track(idle, "yaw")
    assert steady.std() < 0.6 * free.std()


CONTROLS = [
    (Controls(head=(6.0, 0.0, 0.0)), "yaw", 6.0),
    (Controls(head=(0.0, -5.0, 0.0)), "pitch", -5.0),
    (Controls(head=(0.0, 0.0, 5.0)), "roll", 5.0),
    (Controls(gaze=(0.8, -0.4)), "gaze_x", 0.8),
    (Controls(gaze=(0.8, -0.4)), "gaze_y", -0.4),
    (Controls(blink=1.0), "blink_left", 1.0),
    (Controls(emotion="surprised"), "brow", 0.9),
    (Controls(emotion="angry"), "brow", -0.8),
]


@pytest.mark.parametrize(("asked", "name", "goal"), CONTROLS)
def test_controls_are_followed_smoothly(asked: Controls, name: str, goal: float) -> None:
    def step_in(frame: int) -> Controls:
        return asked if 2 * FPS <= frame < 5 * FPS else Controls()

    with_it, without = live(8, controls=step_in), live(8)
    added = track(with_it, name) - track(without, name)
    steps = np.abs(np.diff(track(with_it, name)))
    tolerance = 0.2 if name in ("brow", "blink_left") else 0.05
    if name.startswith(("gaze", "blink")):
        assert track(with_it, name)[3 * FPS : 5 * FPS] == pytest.approx(goal, abs=tolerance)
    else:
        assert added[3 * FPS + 12 : 5 * FPS].mean() == pytest.approx(goal, rel=0.05)
    assert steps.max() <= LARGEST_STEP[name]
    assert abs(added[-FPS:]).max() < 0.02, "let go, it comes back"


def test_happy_smiles_and_sad_does_not() -> None:
    state = motion.Motion()
    for emotion, sign in (("happy", 1), ("sad", -1)):
        for _ in range(2 * FPS):
            controls = Controls(emotion=emotion, emotion_strength=0.5)  # type: ignore[arg-type]
            state, _ = motion.step(state, 0, silence_at(0), controls)
        assert sign * state.asked.smile.value > 0.2


def test_open_eyes_can_be_held() -> None:
    faces = live(20, controls=lambda frame: Controls(blink=0.0))
    assert track(faces, "blink_left")[12:].max() < 0.05


def test_angles_stay_in_bounds_whatever_is_asked() -> None:
    faces = live(5, controls=lambda frame: Controls(head=(90.0, -90.0, 45.0), gaze=(4.0, -4.0)))
    for name, bound in (("yaw", 8), ("pitch", 8), ("roll", 8), ("gaze_x", 1), ("gaze_y", 1)):
        assert np.abs(track(faces, name)).max() <= bound


def test_same_seed_same_life_other_seed_another() -> None:
    assert live(20, seed=5) == live(20, seed=5)
    assert live(20, seed=5) != live(20, seed=6)


def test_a_kept_state_lives_on_the_same() -> None:
    state = motion.Motion()
    for frame in range(100):
        state, _ = motion.step(state, 3, speech_at(frame), Controls())
    kept, runs = state, []
    for _ in range(2):
        state, faces = kept, []
        for frame in range(100, 200):
            state, face = motion.step(state, 3, speech_at(frame), Controls())
            faces.append(face)
        runs.append(faces)
    assert runs[0] == runs[1]
    assert replace(kept) == kept


def test_chance_is_fair_and_independent() -> None:
    drawn = np.array([[dice.uniform(seed, "a", k) for k in range(4_000)] for seed in (0, 1)])
    other = np.array([dice.uniform(0, "b", k) for k in range(4_000)])
    assert np.abs(np.histogram(drawn[0], bins=10, range=(0, 1))[0] / 400 - 1).max() < 0.2
    for a, b in ((drawn[0], drawn[1]), (drawn[0], other), (drawn[0][1:], drawn[0][:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    bell = np.array([dice.normal(3, "c", k) for k in range(4_000)])
    assert abs(bell.mean()) < 0.05
    assert bell.std() == pytest.approx(0.97, abs=0.04)


def test_drift_is_smooth_at_its_knots() -> None:
    path = np.array([dice.drift(1, "d", k / 1_000, 0.5) for k in range(10_000)])
    # A speed that jumped at a knot would show as a bend of about 1,000 per second squared.
    assert np.abs(np.diff(path, 2)).max() * 1e6 < 60
    assert 0.4 < path.std() < 1.0
