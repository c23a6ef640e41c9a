"""Speech windows to numbers for the speech tokens, chunk after chunk.

Takes: one window of samples and what was heard before. Gives: [tokens, inputs] and the history that
the next chunk continues from. Never: changes a history; going back is using an older one.

Each token looks at log-mel frames around its own middle: `num_past` before, `num_future` after.
Loudness is evened out with a running level, because a stream has no "whole utterance".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.diffusion.conditioning.mel import log_mel
from talking_avatar.engine.diffusion.config import MEL_WINDOW as WINDOW
from talking_avatar.engine.diffusion.config import AvatarDiTConfig

USUAL_LEVEL = 0.1
"""Root mean square of speech, -20 dB: what every voice is brought to."""
QUIETEST = 0.003
"""Below this a chunk is not speech, and says nothing of the voice's level."""
ACTIVE_SHARE = 0.25
"""A chunk this much quieter than the level is a pause."""
FOLLOW = 0.15
"""How far the level moves to each speaking chunk, in decibels: half way in about 0.7 s."""
LARGEST_GAIN = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class SpeechHistory:
    """What was heard before a chunk.

    Attributes:
        samples: The newest ones, as they came.
        level: Running root mean square of the voice.
    """

    samples: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    level: float = USUAL_LEVEL


class SpeechFrontEnd(Protocol):
    """Samples to a token's numbers."""

    def hear(
        self, samples: npt.NDArray[np.float32], history: SpeechHistory
    ) -> tuple[npt.NDArray[np.float32], SpeechHistory]:
        """Take one window.

        Args:
            samples: The chunk's own and the look-ahead, 24 kHz.
            history: From the chunk before; ``SpeechHistory()`` at the start.

        Returns:
            [num_speech_tokens, speech.inputs], FP32, and the history for the next chunk.
        """
        ...


class MelFrontEnd:
    """A `SpeechFrontEnd` on our own log-mel frames."""

    def __init__(self, config: AvatarDiTConfig) -> None:
        speech = config.speech
        tokens = config.num_speech_tokens
        self._num_mels = speech.num_mels
        self._chunk_samples = config.chunk_samples
        self._history_samples = speech.num_past * speech.hop + WINDOW // 2
        stride = config.chunk_samples // max(1, tokens)
        middles = self._history_samples + stride // 2 + stride * np.arange(tokens)
        context = speech.hop * np.arange(-speech.num_past, speech.num_future + 1)
        wanted = middles[:, None] + context
        self._centers, frame_of = np.unique(wanted, return_inverse=True)
        self._frame_of = frame_of.reshape(wanted.shape)

    def hear(
        self, samples: npt.NDArray[np.float32], history: SpeechHistory
    ) -> tuple[npt.NDArray[np.float32], SpeechHistory]:
        """See `SpeechFrontEnd.hear`."""
        own = samples[: self._chunk_samples]
        level = follow_level(history.level, own)
        missing = self._history_samples - len(history.samples)
        heard = np.concatenate([np.zeros(missing, np.float32), history.samples, samples])
        gain = min(USUAL_LEVEL / level, LARGEST_GAIN)
        frames = log_mel(heard * np.float32(gain), self._centers, self._num_mels)
        end = self._history_samples + self._chunk_samples
        newest = heard[end - self._history_samples : end].copy()
        return frames[self._frame_of].reshape(len(self._frame_of), -1), SpeechHistory(newest, level)


def follow_level(level: float, samples: npt.NDArray[np.float32]) -> float:
    """Move the running level toward a chunk's, unless the chunk is a pause."""
    rms = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
    if rms < max(QUIETEST, ACTIVE_SHARE * level):
        return level
    return float(level * (rms / level) ** FOLLOW)


def open_front_end(config: AvatarDiTConfig) -> SpeechFrontEnd:
    """Make the front end that the configuration names.

    Raises:
        MissingDependency: wav2vec 2.0 is wanted and transformers is not installed.
    """
    if config.speech.source == "wav2vec2":
        from talking_avatar.engine.diffusion.conditioning.wav2vec import open_wav2vec

        return open_wav2vec(config)
    return MelFrontEnd(config)
