"""What the DiT is told: log-mel speech, chunk by chunk; controls; blinks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from talking_avatar.engine.base import Controls
from talking_avatar.engine.diffusion.conditioning.controls import (
    BLINK,
    NUM_CONTROLS,
    control_numbers,
    own_blink,
)
from talking_avatar.engine.diffusion.conditioning.mel import FLOOR, log_mel, mel_bands
from talking_avatar.engine.diffusion.conditioning.speech import (
    MelFrontEnd,
    SpeechHistory,
    follow_level,
    open_front_end,
)
from talking_avatar.engine.diffusion.config import CONFIGS, AvatarDiTConfig, SpeechConfig

Samples = np.ndarray[Any, np.dtype[np.float32]]


def tone(hz: float, seconds: float, level: float = 0.1) -> Samples:
    t = np.arange(round(24_000 * seconds)) / 24_000
    return (level * 2**0.5 * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def windows(speech: Samples, config: AvatarDiTConfig) -> list[Samples]:
    size, step = config.chunk_samples + config.lookahead_samples, config.chunk_samples
    padded = np.concatenate([speech, np.zeros(size, np.float32)])
    return [padded[i : i + size] for i in range(0, len(speech), step)]


def hear(front_end: MelFrontEnd, parts: list[Samples]) -> list[Samples]:
    history, heard = SpeechHistory(), []
    for part in parts:
        numbers, history = front_end.hear(part, history)
        heard.append(numbers)
    return heard


def test_bands_are_even_on_the_mel_scale_and_add_up() -> None:
    bands = mel_bands(26)
    assert bands.shape == (26, 513)
    peaks = bands.argmax(1) * 24_000 / 1_024
    assert (np.diff(peaks) > 0).all()
    assert 80 < peaks[0] < 200
    assert 6_500 < peaks[-1] < 7_600
    inside = bands.sum(0)[round(300 / 23.4375) : round(6_000 / 23.4375)]
    assert abs(inside - 1).max() < 1e-9, "neighbors share every frequency between their peaks"


@pytest.mark.parametrize("hz", [200.0, 1_000.0, 4_000.0])
def test_a_tone_is_in_its_band(hz: float) -> None:
    frames = log_mel(tone(hz, 0.2), np.array([2_400]), 26)
    band = int(frames[0].argmax())
    peaks = mel_bands(26).argmax(1) * 24_000 / 1_024
    assert abs(peaks[band] - hz) == np.abs(peaks - hz).min()


def test_silence_is_one_fixed_number() -> None:
    frames = log_mel(np.zeros(1_000, np.float32), np.array([300, 700]), 26)
    assert frames.max() == frames.min() == pytest.approx((np.log(FLOOR) + 2) / 3)


def test_chunks_hear_what_one_long_window_hears(tiny: AvatarDiTConfig) -> None:
    """No click, no gap and no shift at chunk borders: frames are where they would be."""
    draw = np.random.default_rng(0)
    speech = (0.1 * draw.standard_normal(4_000 * 6)).astype(np.float32)
    heard = hear(MelFrontEnd(tiny), windows(speech, tiny))
    before = 20 * 250 + 300
    whole = np.concatenate([np.zeros(before, np.float32), speech, np.zeros(8_000, np.float32)])
    for chunk, numbers in enumerate(heard):
        for token in (0, 3, 7):
            middle = before + 4_000 * chunk + 500 * token + 250
            frames = log_mel(whole, middle + 250 * np.arange(-20, 11), 26)
            expected = frames.flatten()
            # The level follows the voice by less than 1 % here; 3 is the logarithm's spread.
            assert np.abs(numbers[token] - expected).max() < 0.01, (chunk, token)


def test_a_history_is_a_value(tiny: AvatarDiTConfig) -> None:
    front_end, parts = MelFrontEnd(tiny), windows(tone(300, 1.0), tiny)
    _, after = front_end.hear(parts[0], SpeechHistory())
    first, _ = front_end.hear(parts[1], after)
    front_end.hear(parts[3], after)
    again, _ = front_end.hear(parts[1], after)
    assert np.array_equal(first, again)


def test_a_quiet_and_a_loud_voice_sound_alike_after_four_seconds(tiny: AvatarDiTConfig) -> None:
    draw = np.random.default_rng(1)
    voice = draw.standard_normal(24_000 * 4).astype(np.float32)
    ends = [hear(MelFrontEnd(tiny), windows(voice * g, tiny))[-3] for g in (0.03, 0.1, 0.3)]
    assert abs(ends[0].mean() - ends[1].mean()) < 0.03
    assert abs(ends[2].mean() - ends[1].mean()) < 0.03


def test_pauses_do_not_move_the_level() -> None:
    assert follow_level(0.1, np.zeros(4_000, np.float32)) == 0.1
    assert follow_level(0.1, np.full(4_000, 0.02, np.float32)) == 0.1
    assert follow_level(0.1, np.full(4_000, 0.2, np.float32)) == pytest.approx(0.1 * 2**0.15)
    assert follow_level(0.002, np.full(4_000, 0.0029, np.float32)) == 0.002


def test_lookahead_is_used_and_no_more_is_needed(tiny: AvatarDiTConfig) -> None:
    front_end = MelFrontEnd(tiny)
    window = np.zeros(tiny.chunk_samples + tiny.lookahead_samples, np.float32)
    silent, _ = front_end.hear(window, SpeechHistory())
    window[-2:] = 1.0
    window[-20:-2] = 0.5
    heard, _ = front_end.hear(window, SpeechHistory())
    assert np.array_equal(silent[:7], heard[:7])
    assert not np.array_equal(silent[7], heard[7])
    with pytest.raises(AssertionError):
        front_end.hear(window[:-1], SpeechHistory())


def test_every_model_has_a_place_for_every_control() -> None:
    assert {c.num_controls for c in CONFIGS.values() if c.num_control_tokens} == {NUM_CONTROLS}


def test_every_control_moves_its_own_numbers() -> None:
    rest = control_numbers(Controls(blink=0.0), 0, 0)
    assert torch.equal(rest, torch.zeros(NUM_CONTROLS))
    seen: list[set[int]] = []
    for controls in (
        Controls(blink=0.7),
        Controls(blink=0.0, gaze=(0.5, -0.5)),
        Controls(blink=0.0, head=(3.0, -2.0, 1.0)),
        Controls(blink=0.0, mouth_gain=1.5),
        Controls(blink=0.0, listening=True),
        *(
            Controls(blink=0.0, emotion=e, emotion_strength=0.5)  # type: ignore[arg-type]
            for e in ("happy", "sad", "surprised", "angry")
        ),
    ):
        seen.append(set(control_numbers(controls, 0, 0).nonzero().flatten().tolist()))
    assert [len(s) for s in seen] == [4, 3, 3, 1, 1, 1, 1, 1, 1]
    assert set.union(*seen) == set(range(NUM_CONTROLS))
    assert control_numbers(Controls(blink=0.0, gaze=(0.0, 0.0)), 0, 0).abs().sum() == 1, "is given"


def test_the_engine_blinks_about_seventeen_times_a_minute() -> None:
    lids = np.array([own_blink(5, frame) for frame in range(24 * 60)])
    starts = np.flatnonzero(np.diff((lids > 0).astype(int), prepend=0) == 1)
    assert 16 <= len(starts) <= 18
    assert all(tuple(lids[s : s + len(BLINK)]) == BLINK for s in starts[:-1])
    assert np.std(np.diff(starts)) > 5, "not a metronome"
    numbers = control_numbers(Controls(), int(starts[0]) // 4, 5)
    assert numbers[:4].max() > 0
    assert [own_blink(5, f) for f in range(100)] != [own_blink(6, f) for f in range(100)]


def test_wav2vec_states_take_the_place_of_mel_frames(tiny: AvatarDiTConfig) -> None:
    transformers = pytest.importorskip("transformers")
    from talking_avatar.engine.diffusion.conditioning.wav2vec import Wav2VecFrontEnd

    speech = SpeechConfig(source="wav2vec2", num_mels=24, num_past=0, num_future=0)
    config = replace(tiny, speech=speech)
    torch.manual_seed(0)
    encoder = transformers.Wav2Vec2Model(
        transformers.Wav2Vec2Config(
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            conv_dim=(16,) * 7,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
        )
    ).eval()
    front_end = Wav2VecFrontEnd(config, encoder)
    size = config.chunk_samples + config.lookahead_samples
    numbers, history = front_end.hear(tone(300, 1)[:size], SpeechHistory())
    assert numbers.shape == (config.num_speech_tokens, config.speech.inputs) == (8, 24)
    assert np.isfinite(numbers).all()
    assert np.abs(np.diff(numbers, axis=0)).max() > 0
    again, _ = front_end.hear(tone(300, 1)[:size], SpeechHistory())
    assert np.array_equal(numbers, again)
    assert len(history.samples) == 24_000
    with pytest.raises(ValueError, match="the encoder's states have 24 numbers"):
        Wav2VecFrontEnd(tiny, encoder)


def test_wav2vec_says_what_it_needs(tiny: AvatarDiTConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from talking_avatar.errors import MissingDependency

    monkeypatch.setitem(sys.modules, "transformers", None)
    speech = SpeechConfig(source="wav2vec2", num_mels=24, num_past=0, num_future=0)
    with pytest.raises(MissingDependency, match="pip install transformers"):
        open_front_end(replace(tiny, speech=speech))
