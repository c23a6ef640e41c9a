"""Speech whose samples say where they stand, so that a lost or doubled one is seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def counted(seconds: float, *, sign: int = 1) -> npt.NDArray[np.int16]:
    """Give int16 (n,) at 24 kHz: 1, 2, 3... 30,000 and from 1 again; never 0.

    Args:
        seconds: Its length, to the next sample.
        sign: 1 or -1: tells two turns apart.
    """
    positions = np.arange(round(seconds * 24_000)) % 30_000 + 1
    return (positions * sign).astype(np.int16)
