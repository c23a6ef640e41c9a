"""Skin tone where a photo shows something else: spread from all around.

Takes a picture and where it can be trusted, gives a smooth picture. Knows no face.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.geometry import Array

Mask = npt.NDArray[np.bool_]

_CELL = 1 / 14
"""Cell in which tone is spread, in half widths of the feature."""
_NUM_SWEEPS = 240
"""Relaxation steps; a hole of 20 cells is then level to a gray value."""


def spread(image: Array, known: Mask, half: float) -> Array:
    """Spread the color of what is known over the rest, as a soap film would.

    Args:
        image: float32 (h, w, 3).
        known: (h, w) where it is skin.
        half: Half the width of the feature around which this is, in pixels.

    Returns:
        float32 (h, w, 3), smooth everywhere.
    """
    height, width = known.shape
    cell = max(1.0, _CELL * half)
    size = (max(4, round(width / cell)), max(4, round(height / cell)))
    weight = known.astype(np.float32)
    share = cv2.resize(weight, size, interpolation=cv2.INTER_AREA)
    total = cv2.resize(image * weight[..., None], size, interpolation=cv2.INTER_AREA)
    fixed = (share > 0.25)[..., None]
    sample = total / np.maximum(share, 1e-3)[..., None]
    mean = sample[fixed[..., 0]].mean(0) if fixed.any() else np.float32(128)
    film = np.where(fixed, sample, mean).astype(np.float32)
    kernel = np.array([[0.5, 1, 0.5], [1, 0, 1], [0.5, 1, 0.5]], np.float32) / 6
    for _ in range(_NUM_SWEEPS):
        film = np.where(fixed, sample, cv2.filter2D(film, -1, kernel)).astype(np.float32)
    soft = cv2.GaussianBlur(film, (0, 0), 1.0)
    return np.asarray(cv2.resize(soft, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)
