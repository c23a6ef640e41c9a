"""Hidden states of a wav2vec 2.0 encoder as speech features: an option, with transformers.

Takes: a loaded encoder. Gives: a `SpeechFrontEnd`. Never: downloads anything.

The encoder hears 16 kHz and gives a state every 20 ms; each speech token takes the state at its
middle, between the two nearest. Context comes from the history that is heard again.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
import torch

from talking_avatar.engine.base import SAMPLE_RATE
from talking_avatar.engine.diffusion.conditioning.speech import (
    USUAL_LEVEL,
    SpeechHistory,
    follow_level,
)
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.errors import MissingDependency

ENCODER_RATE = 16_000
STATE_SAMPLES = 320
"""Samples between two hidden states, at 16 kHz."""
RECEPTIVE = 400
"""Samples that one hidden state hears before its context layers."""
HISTORY_S = 1.0


class Wav2VecFrontEnd:
    """A `SpeechFrontEnd` on a ``transformers.Wav2Vec2Model``."""

    def __init__(self, config: AvatarDiTConfig, encoder: Any) -> None:
        """Wrap a loaded encoder.

        Args:
            config: Its ``speech.num_mels`` is the encoder's width; no past or future frames.
            encoder: In evaluation mode.

        Raises:
            ValueError: The widths differ.
        """
        width, wanted = encoder.config.hidden_size, config.speech.inputs
        if width != wanted:
            raise ValueError(f"the encoder's states have {width} numbers, the model takes {wanted}")
        self._encoder = encoder
        self._chunk_samples = config.chunk_samples
        self._tokens = config.num_speech_tokens

    def hear(
        self, samples: npt.NDArray[np.float32], history: SpeechHistory
    ) -> tuple[npt.NDArray[np.float32], SpeechHistory]:
        """See `SpeechFrontEnd.hear`."""
        level = follow_level(history.level, samples[: self._chunk_samples])
        keep = round(HISTORY_S * SAMPLE_RATE)
        before = np.concatenate(
            [np.zeros(keep - len(history.samples), np.float32), history.samples]
        )
        heard = np.concatenate([before, samples])
        states = self._states(heard * np.float32(USUAL_LEVEL / level))
        stride = self._chunk_samples / self._tokens
        middles_s = (keep + stride * (np.arange(self._tokens) + 0.5)) / SAMPLE_RATE
        at = (middles_s * ENCODER_RATE - RECEPTIVE / 2) / STATE_SAMPLES
        features = np.stack([np.interp(at, np.arange(len(states)), s) for s in states.T], 1)
        newest = heard[self._chunk_samples : self._chunk_samples + keep].copy()
        return features.astype(np.float32), SpeechHistory(newest, level)

    def _states(self, heard: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        at_16k = soxr.resample(heard, SAMPLE_RATE, ENCODER_RATE)
        with torch.inference_mode():
            states = self._encoder(torch.from_numpy(at_16k)[None]).last_hidden_state[0]
        return np.asarray(states.float().cpu())


def open_wav2vec(config: AvatarDiTConfig) -> Wav2VecFrontEnd:
    """Make an encoder of the base shape and wrap it; its weights are random.

    Raises:
        MissingDependency: transformers is not installed.
    """
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise MissingDependency(
            "wav2vec 2.0 features need transformers: pip install transformers"
        ) from error
    shape = transformers.Wav2Vec2Config(hidden_size=config.speech.inputs)
    return Wav2VecFrontEnd(config, transformers.Wav2Vec2Model(shape).eval())
