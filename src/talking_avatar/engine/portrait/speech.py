"""Speech in, mouth shapes out: a log-mel front end and a small net, in numpy, as a stream.

Takes: 1,000 samples at 24 kHz per frame and up to `LOOKAHEAD_SAMPLES` of what follows.
Gives: one `HeardShape` per frame, 0.2 ms of one core each.
Never looks further ahead, never normalizes by what it has not heard, never moves a face.

Columns of the spectrum stand every 250 samples, four to a frame. The net sees 38 of them: 24
before the frame, its own four, and ten after it. Loudness is taken out by a running peak: it rises
at once (so the first syllable is already right, as it is inside the look-ahead) and falls by
`_LEVEL_FALL_DB` a column. The weights were made by examples/train_mouth_shapes.

Shapes: C columns, M mel bands, all spectra in dB.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from importlib import resources

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.base import SAMPLE_RATE, SAMPLES_PER_FRAME

Floats = npt.NDArray[np.float32]

NUM_MELS = 32
HOP = 250
COLUMNS_PER_FRAME = SAMPLES_PER_FRAME // HOP
PAST_COLUMNS, AHEAD_COLUMNS = 24, 10
WINDOW_COLUMNS = PAST_COLUMNS + COLUMNS_PER_FRAME + AHEAD_COLUMNS
_WIDTH, _FFT = 600, 640
_BEFORE = (_WIDTH - HOP) // 2
"""A column's 25 ms are centered on its hop: they begin 175 samples before it..."""
_AFTER = _BEFORE + HOP
"""...and end 425 samples after its start."""
LOOKAHEAD_SAMPLES = (AHEAD_COLUMNS - 1) * HOP + _AFTER
"""2,675 samples = 111 ms."""

QUIET_DB = -38.0
"""The running level never falls below this, 8 dB under the vowels of speech at -35 dBFS: before the
first word, the noise of a room must not pass for the loudest thing that there is."""
_LEVEL_FALL_DB = 4.0 * HOP / SAMPLE_RATE
_RANGE_DB = (-70.0, 10.0)
_DB_PER_UNIT = 20.0


@functools.cache
def _mel_bank() -> Floats:
    """Triangles, equally wide on the mel scale from 70 Hz to 8 kHz: (M, FFT bins)."""
    low, high = (1127.0 * np.log1p(hz / 700.0) for hz in (70.0, 8_000.0))
    edges_hz = 700.0 * np.expm1(np.linspace(low, high, NUM_MELS + 2) / 1127.0)
    bins_hz = np.arange(_FFT // 2 + 1) * SAMPLE_RATE / _FFT
    left, center, right = (edges_hz[k : k + NUM_MELS, None] for k in range(3))
    rising, falling = (bins_hz - left) / (center - left), (right - bins_hz) / (right - center)
    return np.asarray(np.maximum(np.minimum(rising, falling), 0.0), np.float32)


@functools.cache
def _taper() -> Floats:
    """Hann, scaled so that a column's bands sum to about the sound's mean square."""
    taper = np.hanning(_WIDTH)
    return np.asarray(taper * np.sqrt(2.0 / (_FFT * np.square(taper).sum())), np.float32)


def spectrum_db(samples: Floats) -> Floats:
    """Log-mel columns of everything in ``samples``; its first column begins at its first sample.

    Returns:
        (C, M) in dB relative to full scale.
    """
    num_columns = (len(samples) - _WIDTH) // HOP + 1
    cut = np.lib.stride_tricks.sliding_window_view(samples, _WIDTH)[: num_columns * HOP : HOP]
    spectrum = np.fft.rfft(cut * _taper(), _FFT)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    bands = power.astype(np.float32) @ _mel_bank().T
    return np.asarray(10.0 * np.log10(bands + 1e-12), np.float32)


def loudness_db(columns: Floats) -> Floats:
    """Power of each column, all bands together: (C,)."""
    power = np.power(10.0, columns / 10.0).sum(axis=1)
    return np.asarray(10.0 * np.log10(power), np.float32)


def running_level(loudness: Floats, level_db: float) -> Floats:
    """Follow the peaks: up at once, down slowly, never below `QUIET_DB`; (C,)."""
    fall = _LEVEL_FALL_DB * np.arange(1, len(loudness) + 1, dtype=np.float32)
    peaks = np.maximum.accumulate(np.concatenate([[level_db], loudness + fall]))[1:] - fall
    return np.asarray(np.maximum(peaks, QUIET_DB), np.float32)


def net_input(columns: Floats, level_db: float | Floats) -> Floats:
    """Columns as the net wants them: relative to the level, about -3.5 to 0.5."""
    return np.asarray(np.clip(columns - level_db, *_RANGE_DB) / _DB_PER_UNIT, np.float32)


@dataclass(frozen=True, slots=True)
class HeardShape:
    """What one frame of sound asks of the mouth; the first six as in `face.MouthShape`.

    Attributes:
        closure: Probability that lips meet somewhere in the frame (m, b, p).
        voice: Probability that someone speaks in the frame.
        loudness_db: Of the frame, relative to the running level: 0 at the loudest vowels.
        peak_db: Of the loudest column in view, relative to full scale.
    """

    open: float
    jaw: float
    spread: float
    pucker: float
    teeth_on_lip: float
    tongue: float
    closure: float
    voice: float
    loudness_db: float
    peak_db: float


_OUTPUTS = tuple(field.name for field in fields(HeardShape))[:8]
_GATES = [_OUTPUTS.index(name) for name in ("teeth_on_lip", "closure", "voice")]


class MouthNet:
    """Two convolutions over time, two dense layers; weights as float16 in the package."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self._weights = {name: value.astype(np.float32) for name, value in weights.items()}

    def __call__(self, columns: Floats) -> Floats:
        """Map (38, M) to the eight outputs in the order of `HeardShape`."""
        w = self._weights
        hidden = columns
        for name in ("first", "second"):
            patches = np.lib.stride_tricks.sliding_window_view(hidden, 4, axis=0)[::2]
            flat = patches.reshape(len(patches), -1)
            hidden = np.maximum(flat @ w[f"{name}.weight"] + w[f"{name}.bias"], 0.0)
        dense = np.maximum(hidden.reshape(-1) @ w["dense.weight"] + w["dense.bias"], 0.0)
        out: Floats = dense @ w["out.weight"] + w["out.bias"]
        out[_GATES] = 1.0 / (1.0 + np.exp(-np.clip(out[_GATES], -30.0, 30.0)))
        return out


@functools.cache
def load_net() -> MouthNet:
    """Load the package's weights, once."""
    path = resources.files("talking_avatar.engine.portrait") / "mouth_shapes.npz"
    with path.open("rb") as file, np.load(file) as stored:
        return MouthNet({name: stored[name] for name in stored.files})


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """All that is remembered of the sound so far.

    Attributes:
        tail: The last samples, which the next frame's first columns still need.
        columns: (PAST_COLUMNS - 1, M): final columns. One less than the net sees, as the newest
            reaches 175 samples into the frame that comes next.
        level_db: Running level at the last of them.
    """

    tail: Floats
    columns: Floats
    level_db: float


SILENCE = Heard(
    np.zeros(HOP + _BEFORE, np.float32),
    np.full((PAST_COLUMNS - 1, NUM_MELS), -120.0, np.float32),
    QUIET_DB,
)


def hear(before: Heard, samples: Floats, num_known: int) -> tuple[Heard, HeardShape]:
    """Listen to one frame.

    Args:
        before: What was heard until the frame begins.
        samples: The frame's 1,000 and the look-ahead's, (1,000 + LOOKAHEAD_SAMPLES,).
        num_known: How many of them are final; columns that need others repeat the last known one.

    Returns:
        What to pass with the next frame, and this frame's shape.
    """
    fresh = spectrum_db(np.concatenate([before.tail, samples]))
    num_known_columns = min(len(fresh), (num_known - _AFTER) // HOP + 2)
    fresh[num_known_columns:] = fresh[num_known_columns - 1]
    loudness = loudness_db(fresh)
    levels = running_level(loudness, before.level_db)
    view = np.concatenate([before.columns, fresh])
    out = load_net()(net_input(view, levels[-1]))
    own = loudness[1 : 1 + COLUMNS_PER_FRAME]
    peak_db = float(max(loudness.max(), loudness_db(before.columns[-8:]).max()))
    said = dict(zip(_OUTPUTS, out.tolist(), strict=True))
    shape = HeardShape(**said, loudness_db=float(own.max() - levels[-1]), peak_db=peak_db)
    after = Heard(
        samples[SAMPLES_PER_FRAME - len(before.tail) : SAMPLES_PER_FRAME].copy(),
        view[COLUMNS_PER_FRAME : COLUMNS_PER_FRAME + PAST_COLUMNS - 1],
        float(levels[COLUMNS_PER_FRAME - 1]),
    )
    return after, shape
