"""What the character does beside speaking, as numbers for the control token.

Takes: `Controls` and the chunk. Gives: `NUM_CONTROLS` numbers. Never: keeps a state.

Lids are named frame by frame and never left to the model: a blink is a few percent of all frames,
and four passes do not pick a rare mode. Where the caller leaves blinking to the engine, blinks
come from the seed: one in every span of `BLINK_SPAN_S`, somewhere in it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from talking_avatar.engine.base import FPS, Controls

BLINK_SPAN_S = 3.5
"""One blink in each: people at rest blink about 17 times a minute (Bentivoglio et al. 1997)."""
BLINK = (0.5, 1.0, 0.8, 0.45, 0.15)
"""How far the lids are shut, frame by frame: they close twice as fast as they open."""
HEAD_DEG = 10.0
"""Degrees that become 1."""
EMOTIONS = ("happy", "sad", "surprised", "angry")
FRAMES = 4
NUM_CONTROLS = FRAMES + 3 + 3 + 2 + len(EMOTIONS)
"""Lids of four frames; gaze x, y and whether it is given; yaw, pitch, roll; gain, listening."""


def own_blink(seed: int, frame: int) -> float:
    """Tell how far the lids are shut in a frame when nobody says so."""
    span = round(BLINK_SPAN_S * FPS)
    bits = np.random.Philox(key=seed % 2**64, counter=[0, 1, 0, frame // span]).random_raw()
    start = int(bits) % (span - len(BLINK))
    at = frame % span - start
    return BLINK[at] if 0 <= at < len(BLINK) else 0.0


def control_numbers(controls: Controls, chunk: int, seed: int) -> Tensor:
    """Make the numbers of one chunk's control token.

    Args:
        controls: From the caller.
        chunk: Index of the chunk.
        seed: Of the stream.

    Returns:
        FP32 [NUM_CONTROLS].
    """
    frames = range(FRAMES * chunk, FRAMES * (chunk + 1))
    lids = [own_blink(seed, f) if controls.blink is None else controls.blink for f in frames]
    gaze = (0.0, 0.0, 0.0) if controls.gaze is None else (*controls.gaze, 1.0)
    head = [degrees / HEAD_DEG for degrees in controls.head]
    emotion = [controls.emotion_strength if controls.emotion == name else 0.0 for name in EMOTIONS]
    gain, listening = controls.mouth_gain - 1.0, float(controls.listening)
    return torch.tensor([*lids, *gaze, *head, gain, listening, *emotion], dtype=torch.float32)
