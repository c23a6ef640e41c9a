"""The speech of one turn, by the position of its samples.

Takes samples at the end, gives any range that was not forgotten, forgets from the front.
Never resamples, never knows what was played.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

_BLOCK = 24_000
"""Samples of one block, a second: writes of 10 ms and reads of one frame both stay O(1)."""


class SpeechTape:
    """A growing row of float32 samples in blocks of one second."""

    def __init__(self) -> None:
        self._blocks: dict[int, Samples] = {}
        self._end = 0
        self._start = 0

    @property
    def end(self) -> int:
        """Position after the last sample."""
        return self._end

    def append(self, samples: Samples) -> None:
        """Add samples at the end; they are copied."""
        done = 0
        while done < len(samples):
            number, offset = divmod(self._end, _BLOCK)
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = np.zeros(_BLOCK, np.float32)
            part = samples[done : done + _BLOCK - offset]
            block[offset : offset + len(part)] = part
            done += len(part)
            self._end += len(part)

    def read(self, start: int, stop: int) -> Samples:
        """Give samples ``[start, stop)`` as an array of the caller's own.

        Raises:
            ValueError: The range is not all there.
        """
        if not self._start <= start <= stop <= self._end:
            raise ValueError(f"[{start}, {stop}) is not within [{self._start}, {self._end})")
        out = np.empty(stop - start, np.float32)
        done = 0
        while done < len(out):
            number, offset = divmod(start + done, _BLOCK)
            part = self._blocks[number][offset : offset + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def forget(self, before: int) -> None:
        """Let go of samples before a position; whole blocks at a time."""
        self._start = max(self._start, min(before, self._end))
        for number in [n for n in self._blocks if (n + 1) * _BLOCK <= self._start]:
            del self._blocks[number]
