"""Makes the int16 sound of each frame, with no click where speech stops and goes on.

Takes `FramePlan`s in the order they are handed out. Never drops, moves or adds a sample of speech.

Where a turn falls silent in the middle (a gap of its speech, a pause), the silence begins with a
2 ms ramp down from the last sample; where it goes on, its first 2 ms fade in. A turn that is cut
ends hard, at a frame's border: after an interruption not one sample may follow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from talking_avatar.audio import to_int16
from talking_avatar.engine.base import SAMPLES_PER_FRAME
from talking_avatar.turn_plan import FramePlan

FADE_SAMPLES = 48
"""2 ms at 24 kHz: the spectrum of a step of that length lies below what is heard as a click."""

_DOWN = np.linspace(1, 0, FADE_SAMPLES, endpoint=False, dtype=np.float32)
_UP = 1 - _DOWN


class Declicker:
    """Remembers how the frame before ended."""

    def __init__(self) -> None:
        self._turn_id: int | None = None
        self._last = np.float32(0)
        self._silence = np.zeros(SAMPLES_PER_FRAME, np.int16)
        self._silence.flags.writeable = False

    def sound(self, plan: FramePlan) -> npt.NDArray[np.int16]:
        """Give the sound of the next frame, int16 (1000,); silence is shared and read-only."""
        was_speaking = self._turn_id is not None and self._turn_id == plan.turn_id
        last, self._last = self._last, plan.samples[-1]
        self._turn_id = plan.turn_id if plan.num_speech else None
        if not plan.num_speech:
            return self._ramp_down(last) if was_speaking and last else self._silence
        if was_speaking or not plan.start:
            return to_int16(plan.samples)
        samples = plan.samples.copy()
        samples[:FADE_SAMPLES] *= _UP
        return to_int16(samples)

    def _ramp_down(self, last: np.float32) -> npt.NDArray[np.int16]:
        sound = np.zeros(SAMPLES_PER_FRAME, np.int16)
        sound[:FADE_SAMPLES] = to_int16(last * _DOWN)
        return sound
