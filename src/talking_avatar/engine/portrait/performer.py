"""Speech and controls in, one `FaceState` a frame out: the actor behind the portrait.

Takes: consecutive `SpeechWindow`s and `Controls`. Gives: faces, as numbers.
Never draws, never waits, never reads a clock. All memory is one frozen value, so that a rewind
is an assignment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from talking_avatar.engine.base import SAMPLES_PER_FRAME, ControlName, Controls, SpeechWindow
from talking_avatar.engine.portrait import motion, speech
from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.mouth_motion import Mouth, awake, ramp, step_mouth


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything a performer remembers."""

    heard: speech.Heard
    mouth: Mouth
    motion: motion.Motion


class Performer:
    """Plays one character. Same seed and same windows: same faces, to the bit.

    Args:
        seed: Of everything that chance decides: blinks, gaze, sway.
    """

    LOOKAHEAD_SAMPLES: ClassVar[int] = speech.LOOKAHEAD_SAMPLES
    CONTROLS: ClassVar[frozenset[ControlName]] = frozenset(
        {"listening", "blink", "gaze", "head", "mouth_gain", "emotion"}
    )

    def __init__(self, seed: int) -> None:
        speech.load_net()
        self._seed = seed
        self._memory = Memory(speech.SILENCE, Mouth(), motion.Motion())

    def perform(self, window: SpeechWindow, controls: Controls) -> tuple[FaceState, ...]:
        """Play the frames of one window.

        Args:
            window: A whole number of frames and `LOOKAHEAD_SAMPLES`; it follows the window before.
            controls: Hold for the whole window; where they step, the face follows smoothly.

        Returns:
            One face per 1,000 samples before the look-ahead.

        Raises:
            ValueError: The window holds no whole number of frames.
        """
        num_frames, rest = divmod(len(window.samples) - self.LOOKAHEAD_SAMPLES, SAMPLES_PER_FRAME)
        if num_frames < 1 or rest:
            raise ValueError(
                f"window has {len(window.samples)} samples; it needs a multiple of "
                f"{SAMPLES_PER_FRAME} plus the look-ahead of {self.LOOKAHEAD_SAMPLES}"
            )
        return tuple(self._play(window, k, controls) for k in range(num_frames))

    def snapshot(self) -> Memory:
        """Return what to `restore` in order to continue from here. Costs nothing."""
        return self._memory

    def restore(self, snapshot: Memory) -> None:
        """Go back to where `snapshot` was taken."""
        self._memory = snapshot

    def _play(self, window: SpeechWindow, index: int, controls: Controls) -> FaceState:
        begin = index * SAMPLES_PER_FRAME
        reach = SAMPLES_PER_FRAME + self.LOOKAHEAD_SAMPLES
        samples = window.samples[begin : begin + reach]
        num_known = min(reach, max(SAMPLES_PER_FRAME, window.num_known - begin))
        was = self._memory
        heard, shape = speech.hear(was.heard, samples, num_known)
        speaking = window.speaking
        mouth = step_mouth(was.mouth, shape, gain=controls.mouth_gain, speaking=speaking)
        sound = motion.Sound(awake(shape, speaking=speaking), ramp(shape.loudness_db, -25.0, 0.0))
        moved, face = motion.step(was.motion, self._seed, sound, controls)
        self._memory = Memory(heard, mouth, moved)
        spread = mouth.shape.spread + moved.asked.spread.value
        expressive = replace(
            mouth.shape, smile=moved.asked.smile.value, spread=min(1.0, max(-1.0, spread))
        )
        return replace(face, mouth=expressive)
