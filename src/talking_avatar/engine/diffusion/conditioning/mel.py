"""Log-mel frames of speech, computed here.

Takes: samples at 24 kHz. Gives: one vector of `num_mels` numbers per hop.
Never: keeps a state, or knows loudness; `speech` does both.

A frame is centered on its sample: 25 ms, Hann window, power spectrum, triangles even on the mel
scale (O'Shaughnessy 1987) between 80 and 7,600 Hz, then the logarithm.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.base import SAMPLE_RATE
from talking_avatar.engine.diffusion.config import MEL_WINDOW as WINDOW

FFT = 1_024
LOWEST_HZ, HIGHEST_HZ = 80.0, 7_600.0
FLOOR = 1e-3
"""Added to a band's power: silence is then a fixed number, not the noise of the recording."""
CENTER, SPREAD = -2.0, 3.0
"""Speech at its usual level has bands of about zero mean and unit deviation after these."""


@cache
def mel_bands(num_mels: int) -> npt.NDArray[np.float64]:
    """Make the triangles, [num_mels, FFT / 2 + 1]: each rises and falls between its neighbors."""
    mel = np.linspace(_to_mel(LOWEST_HZ), _to_mel(HIGHEST_HZ), num_mels + 2)
    low, middle, high = (_to_hz(mel[i : i + num_mels])[:, None] for i in range(3))
    hz = np.fft.rfftfreq(FFT, 1 / SAMPLE_RATE)
    rising = (hz - low) / (middle - low)
    falling = (high - hz) / (high - middle)
    bands: npt.NDArray[np.float64] = np.clip(np.minimum(rising, falling), 0, None)
    bands.setflags(write=False)
    return bands


def log_mel(
    samples: npt.NDArray[np.float32], centers: npt.NDArray[np.int64], num_mels: int
) -> npt.NDArray[np.float32]:
    """Compute frames.

    Args:
        samples: Float, any length.
        centers: Index of each frame's middle sample; the frame must lie within ``samples``.
        num_mels: Bands.

    Returns:
        [frames, num_mels].
    """
    assert centers.min() >= WINDOW // 2, centers.min()
    assert centers.max() + WINDOW // 2 <= len(samples), (centers.max(), len(samples))
    offsets = np.arange(WINDOW) - WINDOW // 2
    frames = samples[centers[:, None] + offsets] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames, FFT)) ** 2
    bands = np.log(power @ mel_bands(num_mels).T + FLOOR)
    return ((bands - CENTER) / SPREAD).astype(np.float32)


def _to_mel(hz: float) -> float:
    return float(2_595 * np.log10(1 + hz / 700))


def _to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 700 * (10 ** (mel / 2_595) - 1)
