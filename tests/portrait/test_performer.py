"""The performer's contract: frames per window, determinism, rewind, pace of the lips."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from talking_avatar.engine.base import SAMPLES_PER_FRAME, Controls, SpeechWindow
from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.performer import Performer

Floats = npt.NDArray[np.float32]
AHEAD = Performer.LOOKAHEAD_SAMPLES


def babble(seconds: float) -> Floats:
    """A buzz with the formants of an open vowel, four syllables a second."""
    time_s = np.arange(round(seconds * 24_000)) / 24_000
    buzz = sum(
        np.exp(-(((k * 120 - f) / 160) ** 2)) * np.sin(2 * np.pi * k * 120 * time_s)
        for k in range(1, 30)
        for f in (750.0, 1_150.0, 2_500.0)
    )
    syllables = np.clip(1.4 * np.sin(2 * np.pi * 2 * time_s) ** 2, 0, 1)
    return (0.1 * buzz * syllables).astype(np.float32)


def windows(samples: Floats, frames: int = 1, *, speaking: bool = True) -> list[SpeechWindow]:
    chunk = frames * SAMPLES_PER_FRAME
    num_chunks = len(samples) // chunk
    padded = np.pad(samples, (0, chunk + AHEAD))
    return [
        SpeechWindow(k, padded[k * chunk : (k + 1) * chunk + AHEAD], chunk + AHEAD, speaking)
        for k in range(num_chunks)
    ]


def play(performer: Performer, shown: list[SpeechWindow]) -> list[FaceState]:
    return [face for window in shown for face in performer.perform(window, Controls())]


def test_a_window_gives_its_frames() -> None:
    assert 0 < AHEAD <= 2_880
    assert {
        "listening", "blink", "gaze", "head", "mouth_gain", "emotion",
    } == Performer.CONTROLS  # fmt: skip
    for frames in (1, 4):
        (window,) = windows(np.zeros(frames * 1_000, np.float32), frames)
        assert len(Performer(0).perform(window, Controls())) == frames


@pytest.mark.parametrize("num_samples", [0, 500, AHEAD, AHEAD + 999, AHEAD + 1_500])
def test_other_lengths_are_refused_with_numbers(num_samples: int) -> None:
    window = SpeechWindow(0, np.zeros(num_samples, np.float32), num_samples, False)
    with pytest.raises(ValueError, match=f"{num_samples} samples.*{AHEAD}"):
        Performer(0).perform(window, Controls())


def test_cutting_into_windows_changes_nothing() -> None:
    samples = babble(2.0)
    one, four = (play(Performer(1), windows(samples, frames)) for frames in (1, 4))
    assert one == four
    assert max(face.mouth.open for face in one) > 0.3


def test_restore_goes_back_to_the_bit() -> None:
    shown = windows(babble(3.0))
    performer = Performer(2)
    play(performer, shown[:30])
    kept = performer.snapshot()
    first = play(performer, shown[30:])
    performer.restore(kept)
    assert play(performer, shown[30:]) == first
    assert play(Performer(2), shown)[30:] == first
    assert play(Performer(3), shown)[30:] != first


def test_windows_are_only_read() -> None:
    samples = babble(0.5)
    samples.setflags(write=False)
    for window in windows(samples):
        window.samples.setflags(write=False)
    play(Performer(0), windows(samples))


def test_a_cut_closes_lips_within_three_frames_without_a_jump() -> None:
    samples = babble(2.0)
    shown = windows(samples)
    opened = [face.mouth.open for face in play(Performer(0), shown)]
    silent = SpeechWindow(0, np.zeros(SAMPLES_PER_FRAME + AHEAD, np.float32), 3_675, False)
    widest = int(np.argmax(opened[6:])) + 6
    for cut in range(widest - 4, widest + 5):
        performer = Performer(0)
        before = play(performer, shown[:cut])[-1].mouth.open
        after = [performer.perform(silent, Controls())[0].mouth.open for _ in range(6)]
        assert after[2] < 0.02
        assert max(after[2:]) < 0.02
        assert np.abs(np.diff([before, *after])).max() <= 0.55


def test_lips_stay_shut_when_no_turn_sounds() -> None:
    faces = play(Performer(0), windows(babble(1.0), speaking=False))
    assert max(face.mouth.open for face in faces) < 0.02


def test_mouth_gain_scales_and_is_followed_smoothly() -> None:
    shown = windows(babble(4.0))
    plain = np.array([face.mouth.open for face in play(Performer(0), shown)])
    performer, wide = Performer(0), []
    for k, window in enumerate(shown):
        gain = 0.5 if k >= 24 else 1.0
        wide += [face.mouth.open for face in performer.perform(window, Controls(mouth_gain=gain))]
    assert wide[:24] == list(plain[:24])
    assert np.mean(wide[48:]) == pytest.approx(0.5 * plain[48:].mean(), rel=0.1)
    performer = Performer(0)
    muted = [performer.perform(w, Controls(mouth_gain=0.0))[0].mouth.open for w in shown]
    assert max(muted[24:]) == 0.0


def test_hostile_samples_give_finite_faces() -> None:
    """Full scale, far too loud, constant: no NaN may reach a renderer."""
    for value in (1.0, -1.0, 1e4, 1e-30):
        shown = windows(np.full(12_000, value, np.float32))
        for face in play(Performer(0), shown):
            assert all(np.isfinite(getattr(face.mouth, n)) for n in ("open", "jaw", "spread"))
            assert 0.0 <= face.mouth.open <= 1.0


def test_expression_reaches_the_mouth_and_spares_the_closure() -> None:
    performer = Performer(0)
    for window in windows(np.zeros(48_000, np.float32)):
        (face,) = performer.perform(window, Controls(emotion="happy"))
    assert face.mouth.smile > 0.5
    assert face.mouth.open == 0.0
    assert face.mouth.close == 1.0
