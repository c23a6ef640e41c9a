"""The mouth follows the sound: held against phoneme times that nobody guessed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from talking_avatar.engine.base import SAMPLES_PER_FRAME, Controls, SpeechWindow
from talking_avatar.engine.portrait import speech
from talking_avatar.engine.portrait.performer import Performer

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples" / "train_mouth_shapes"))

from evaluate import Utterance, load_aligned, perform, score, windows  # noqa: E402
from sentences import HELD_OUT  # noqa: E402
from voices import Espeak  # noqa: E402

Floats = npt.NDArray[np.float32]
DATA = ROOT / "tests" / "data"
LIPS_SHUT = 0.02


def at_level(samples: Floats, rms_dbfs: float) -> Floats:
    """Scale to a loudness; clip as a converter does."""
    rms = float(np.sqrt(np.square(samples).mean()))
    return np.clip(samples * (10 ** (rms_dbfs / 20) / rms), -1, 1).astype(np.float32)


@pytest.fixture(scope="module")
def synthetic() -> list[Utterance]:
    """Two held-out sentences by two held-out voices of espeak-ng, with exact times."""
    return load_aligned(DATA / "spoken_by_espeak.npz")


@pytest.fixture(scope="module")
def human() -> list[Utterance]:
    """A LibriVox reader (public domain), aligned to 10 ms; never trained on."""
    return load_aligned(DATA / "spoken_by_human.npz")


def test_lips_follow_phoneme_times(synthetic: list[Utterance]) -> None:
    result = score(synthetic, [perform(u.samples) for u in synthetic])
    assert result.open >= 0.90, result
    assert abs(result.lag) <= 1, result
    assert result.closed >= 0.93, result
    assert result.closed_false <= 0.08, result
    assert result.teeth >= 0.80, result
    assert result.teeth_false <= 0.03, result
    assert result.pucker >= 0.80, result


def test_lips_follow_a_person(human: list[Utterance]) -> None:
    result = score(human, [perform(u.samples) for u in human])
    assert result.open >= 0.75, result
    assert result.open >= result.loudness + 0.15, result
    assert abs(result.lag) <= 1, result


def test_lips_follow_live_phoneme_times() -> None:
    try:
        espeak = Espeak()
    except OSError:
        pytest.skip("libespeak-ng is not installed (Debian: libespeak-ng1)")
    spoken = [espeak.say(text, words_a_minute=160) for text in HELD_OUT]
    result = score(spoken, [perform(u.samples) for u in spoken])
    assert result.open >= 0.90, result
    assert abs(result.lag) <= 1, result
    assert result.closed >= 0.93, result
    assert result.teeth >= 0.80, result
    assert result.teeth_false <= 0.03, result


@pytest.mark.parametrize("rms_dbfs", [-35.0, -25.0, -9.0])
def test_loudness_of_the_stream_does_not_matter(human: list[Utterance], rms_dbfs: float) -> None:
    reference = perform(at_level(human[0].samples, -15.0))[:, 0]
    opened = perform(at_level(human[0].samples, rms_dbfs))[:, 0]
    assert np.corrcoef(opened, reference)[0, 1] >= 0.98
    assert abs(opened.mean() - reference.mean()) < 0.02


def test_clipped_speech_still_moves_the_lips(human: list[Utterance]) -> None:
    reference = perform(at_level(human[0].samples, -15.0))[:, 0]
    opened = perform(at_level(human[0].samples, -3.0))[:, 0]
    assert np.corrcoef(opened, reference)[0, 1] >= 0.93


def test_digital_silence_keeps_lips_shut() -> None:
    assert perform(np.zeros(72_000, np.float32))[:, 0].max() < LIPS_SHUT


@pytest.mark.parametrize("color", ["white", "brown", "hum"])
def test_noise_at_60_db_keeps_lips_shut(color: str) -> None:
    noise = np.random.default_rng(0).normal(size=72_000)
    if color == "brown":
        noise = np.cumsum(noise - noise.mean())
    if color == "hum":
        noise = np.sin(2 * np.pi * 50 * np.arange(72_000) / 24_000)
    assert (
        perform(at_level((noise - noise.mean()).astype(np.float32), -60.0))[:, 0].max() < LIPS_SHUT
    )


@pytest.mark.parametrize("noise_dbfs", [None, -60.0, -50.0])
def test_lips_close_in_pauses_and_part_again(
    human: list[Utterance], noise_dbfs: float | None
) -> None:
    spoken = at_level(human[0].samples, -20.0)
    stream = np.concatenate([spoken, np.zeros(48_000, np.float32), spoken])
    if noise_dbfs is not None:
        noise = np.random.default_rng(1).normal(size=len(stream)).astype(np.float32)
        stream = stream + at_level(noise, noise_dbfs)
    opened = perform(stream)[:, 0]
    begin = -(-len(spoken) // SAMPLES_PER_FRAME)
    # The clip itself ends in 0.3 s of room; the pause counts from three frames into it.
    assert opened[begin + 3 : begin + 45].max() < LIPS_SHUT
    first, second = opened[:begin], opened[begin + 48 : 2 * begin + 48]
    shared = min(len(first), len(second))
    assert np.corrcoef(first[:shared], second[:shared])[0, 1] > 0.9


def test_the_first_syllable_is_already_right(human: list[Utterance]) -> None:
    samples = at_level(human[0].samples, -30.0)
    cold = perform(samples)[:24, 0]
    warm = perform(np.concatenate([samples[:70_000], samples]))[70:94, 0]
    assert abs(cold.max() - warm.max()) < 0.1


def window(samples: Floats, num_known: int | None = None) -> SpeechWindow:
    return SpeechWindow(0, samples, len(samples) if num_known is None else num_known, True)


def test_nothing_beyond_what_is_known_is_heard(human: list[Utterance]) -> None:
    reach = SAMPLES_PER_FRAME + speech.LOOKAHEAD_SAMPLES
    samples = at_level(human[0].samples, -20.0)[20_000 : 20_000 + reach]
    for num_known in (1_000, 1_700, 3_000):
        silent, loud = samples.copy(), samples.copy()
        silent[num_known:] = 0.0
        loud[num_known:] = 0.5
        performers = Performer(0), Performer(0)
        faces = [
            p.perform(window(s, num_known), Controls())
            for p, s in zip(performers, (silent, loud), strict=True)
        ]
        assert faces[0] == faces[1]


def test_late_speech_does_not_close_the_lips(human: list[Utterance]) -> None:
    """With nothing known ahead, an open vowel stays open to the end of what is known."""
    samples = at_level(human[0].samples, -20.0)
    ahead = perform(samples)
    performer, opened = Performer(0), []
    for k in range(len(ahead)):
        cut = np.zeros(SAMPLES_PER_FRAME + speech.LOOKAHEAD_SAMPLES, np.float32)
        own = samples[k * SAMPLES_PER_FRAME : (k + 1) * SAMPLES_PER_FRAME]
        cut[: len(own)] = own
        (face,) = performer.perform(window(cut, SAMPLES_PER_FRAME), Controls())
        opened.append(face.mouth.open)
    assert np.corrcoef(opened, ahead[:, 0])[0, 1] > 0.6
    assert np.mean(opened) > 0.7 * ahead[:, 0].mean()


def test_vowels_do_not_flutter(synthetic: list[Utterance], human: list[Utterance]) -> None:
    """Inside a long vowel lips open once and close once; what they move back and forth is small."""
    for utterance in (*synthetic, *human):
        opened = perform(utterance.samples)[:, 0]
        for span in utterance.spans:
            if span.end_s - span.start_s < 0.16 or span.ipa not in ("ɑː", "æ", "ʌ", "ɔː", "ɛ"):
                continue
            inside = opened[round(span.start_s * 24) + 1 : round(span.end_s * 24) - 1]
            path, way = np.abs(np.diff(inside)).sum(), 2 * inside.max() - inside[0] - inside[-1]
            assert path - way < 0.15, (span, inside)


def test_net_is_small_and_looks_little_ahead() -> None:
    size_bytes = (Path(speech.__file__).parent / "mouth_shapes.npz").stat().st_size
    assert size_bytes < 400_000
    assert speech.LOOKAHEAD_SAMPLES <= 2_880


def test_a_cut_of_real_speech_closes_lips_within_three_frames(human: list[Utterance]) -> None:
    """Wherever a barge-in falls: three frames later lips are shut, and none jumped."""
    samples = at_level(human[0].samples, -20.0)
    shown = windows(samples)
    reach = SAMPLES_PER_FRAME + speech.LOOKAHEAD_SAMPLES
    silent = SpeechWindow(0, np.zeros(reach, np.float32), reach, False)
    performer = Performer(0)
    for now in shown:
        (before,) = performer.perform(now, Controls())
        kept = performer.snapshot()
        after = [performer.perform(silent, Controls())[0].mouth.open for _ in range(4)]
        performer.restore(kept)
        assert max(after[2:]) < LIPS_SHUT
        assert np.abs(np.diff([before.mouth.open, *after])).max() <= 0.55
