"""Utterances in, training examples out: strung together, disturbed, and labeled column by column.

What a microphone, a telephone line or a synthesizer may do to a voice is done here: loudness,
tempo and length of the vocal tract, color, room, noise, band limit, pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import soxr
from articulation import RATE_HZ, Span, at_frames, curves
from scipy.fft import next_fast_len
from scipy.signal import fftconvolve
from voices import SAMPLE_RATE, Utterance

from talking_avatar.engine.portrait.speech import (
    _BEFORE,
    HOP,
    QUIET_DB,
    loudness_db,
    running_level,
    spectrum_db,
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One long stream.

    Attributes:
        columns: (C, M) spectrum in dB.
        level_db: (C,) running level.
        labels: (C, 8) what the frame that begins at each column should show.
    """

    columns: Floats
    level_db: Floats
    labels: Floats


def warp(utterance: Utterance, speed: float) -> Utterance:
    """Play faster or slower: another tempo, pitch and vocal tract at once."""
    samples = soxr.resample(utterance.samples, SAMPLE_RATE * speed, SAMPLE_RATE)
    spans = tuple(
        replace(span, start_s=span.start_s / speed, end_s=span.end_s / speed)
        for span in utterance.spans
    )
    return Utterance(utterance.voice, samples.astype(np.float32), spans)


def string_together(
    utterances: Sequence[Utterance], gaps_s: Sequence[float]
) -> tuple[Floats, list[Span]]:
    """Put a pause before each utterance and bring all to one loudness."""
    parts: list[Floats] = []
    spans: list[Span] = []
    at_s = 0.0
    for utterance, gap_s in zip(utterances, gaps_s, strict=True):
        parts.append(np.zeros(round(gap_s * SAMPLE_RATE), np.float32))
        at_s += len(parts[-1]) / SAMPLE_RATE
        voiced = np.abs(utterance.samples) > 1e-3
        rms = np.sqrt(np.square(utterance.samples[voiced]).mean() + 1e-9)
        parts.append(utterance.samples / rms)
        spans += [
            replace(s, start_s=s.start_s + at_s, end_s=s.end_s + at_s) for s in utterance.spans
        ]
        at_s += utterance.duration_s
    parts.append(np.zeros(SAMPLE_RATE // 2, np.float32))
    return np.concatenate(parts), spans


def _color(samples: Floats, dice: np.random.Generator) -> Floats:
    """A random smooth tone control, and at times the 4 kHz limit of a telephone."""
    size = next_fast_len(len(samples))
    spectrum = np.fft.rfft(samples, size)
    hz = np.fft.rfftfreq(size, 1.0 / SAMPLE_RATE)
    octaves = np.log2(np.maximum(hz, 60.0) / 60.0)
    gain_db = np.interp(octaves, np.arange(0.0, 9.0), np.cumsum(dice.normal(0.0, 2.5, 9)))
    if dice.random() < 0.2:
        gain_db -= 60.0 * (hz > dice.uniform(3_300.0, 7_000.0))
    colored = np.fft.irfft(spectrum * 10.0 ** (gain_db / 20.0), size)
    return colored[: len(samples)].astype(np.float32)


def _room(samples: Floats, dice: np.random.Generator) -> Floats:
    """A short tail of echoes; the direct sound keeps its place."""
    decay_s = dice.uniform(0.04, 0.16)
    tail = dice.normal(size=round(3 * decay_s * SAMPLE_RATE))
    tail *= np.exp(-np.arange(len(tail)) / (decay_s * SAMPLE_RATE)) * dice.uniform(0.005, 0.02)
    tail[0] = 1.0
    return fftconvolve(samples, tail)[: len(samples)].astype(np.float32)


def _noise(count: int, dice: np.random.Generator) -> Floats:
    """Between white and brown, swelling slowly; rms 1."""
    size = next_fast_len(count)
    spectrum = np.fft.rfft(dice.normal(size=size))
    hz = np.maximum(np.fft.rfftfreq(size, 1.0 / SAMPLE_RATE), 40.0)
    noise = np.fft.irfft(spectrum * hz ** -dice.uniform(0.0, 1.2), size)[:count]
    knots = dice.normal(0.0, 2.0, max(2, count // SAMPLE_RATE + 2))
    swell_db = np.interp(np.arange(count) / SAMPLE_RATE, np.arange(len(knots)), knots)
    noise *= 10.0 ** (swell_db / 20.0)
    return (noise / np.sqrt(np.square(noise).mean())).astype(np.float32)


def disturb(samples: Floats, dice: np.random.Generator) -> Floats:
    """Bring speech of rms 1 to what may arrive in practice."""
    if dice.random() < 0.8:
        samples = _color(samples, dice)
    if dice.random() < 0.3:
        samples = _room(samples, dice)
    rms_db = dice.uniform(-40.0, -6.0)
    samples = samples / np.sqrt(np.square(samples[samples != 0.0]).mean() + 1e-12)
    samples = samples * 10.0 ** (rms_db / 20.0)
    if dice.random() < 0.7:
        noise_db = max(rms_db - dice.uniform(8.0, 55.0), -90.0)
        samples = samples + _noise(len(samples), dice) * 10.0 ** (noise_db / 20.0)
    return np.clip(samples, -1.0, 1.0).astype(np.float32)


def label(samples: Floats, spans: Sequence[Span]) -> Stream:
    """Compute what the net will see and what it should say, at every column."""
    columns = spectrum_db(np.pad(samples, (_BEFORE, 0)))
    level_db = running_level(loudness_db(columns), QUIET_DB)
    starts_s = np.arange(len(columns)) * (HOP / SAMPLE_RATE)
    drawn = curves(spans, len(samples) / SAMPLE_RATE + 4.0 / RATE_HZ)
    return Stream(columns, level_db, at_frames(drawn, starts_s))


def streams(utterances: Sequence[Utterance], seed: int) -> Iterator[Stream]:
    """Shuffle, string together by fives, disturb and label: another seed, another day."""
    dice = np.random.default_rng(seed)
    order = dice.permutation(len(utterances))
    for begin in range(0, len(order), 5):
        chosen = [utterances[k] for k in order[begin : begin + 5]]
        warped = [warp(u, float(np.exp(dice.normal(0.0, 0.12)))) for u in chosen]
        gaps_s = dice.exponential(0.6, len(warped)) + 0.05
        samples, spans = string_together(warped, list(gaps_s))
        yield label(disturb(samples, dice), spans)
