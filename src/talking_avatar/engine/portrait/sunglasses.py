"""Tells whether the eyes of a face can be seen, by its pixels.

Dark glasses darken both the eyes and the skin under them; dark eyes, make-up and shade leave one of
them bright. Each eye is compared with its own cheek, so that light from one side does not matter.
Mirrored glasses as bright as the skin are not noticed.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.landmarks import CHIN, FOREHEAD
from talking_avatar.engine.portrait.networks import opencv_threads

MIN_EYE_BRIGHTNESS = 0.35
"""Dark glasses on two people: 0.05 and 0.16; 29 portraits without: 0.53 to 1.2."""

_UPPER_LIDS = (
    (33, 246, 161, 160, 159, 158, 157, 173, 133),
    (362, 398, 384, 385, 386, 387, 388, 466, 263),
)
_LOWER_LIDS = ((7, 163, 144, 145, 153, 154, 155), (382, 381, 380, 374, 373, 390, 249))
_UNDER_EYES = ((228, 229, 230, 231), (448, 449, 450, 451))
_CHEEKS = ((50, 101, 118, 205), (280, 330, 347, 425))
_PATCH_SHARE = 0.012
"""Half the side of a patch of skin, of the face's height."""


def eye_brightness(rgb: npt.NDArray[np.uint8], points: npt.NDArray[np.float32]) -> float:
    """How bright eyes and the skin under them are, relative to the cheeks.

    Args:
        rgb: uint8 (H, W, 3).
        points: (468, 3), in pixels of ``rgb``.
    """
    with opencv_threads():
        gray = np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.uint8)
    height = float(np.linalg.norm(points[FOREHEAD, :2] - points[CHIN, :2]))
    radius = max(1, round(_PATCH_SHARE * height))

    def skin(indices: tuple[int, ...]) -> float:
        return float(np.median([_median_around(gray, points[i], radius) for i in indices]))

    ratios = [
        (_highlight(gray, points[[*upper, *lower], :2]) + skin(under)) / 2 / max(1.0, skin(cheek))
        for upper, lower, under, cheek in zip(
            _UPPER_LIDS, _LOWER_LIDS, _UNDER_EYES, _CHEEKS, strict=True
        )
    ]
    return float(np.mean(ratios))


def _highlight(gray: npt.NDArray[np.uint8], outline: npt.NDArray[np.float32]) -> float:
    """The bright parts between the lids: white of the eye, reflections."""
    inside = np.zeros(gray.shape, np.uint8)
    cv2.fillConvexPoly(inside, cv2.convexHull(outline.round().astype(np.int32)), 1)
    seen = gray[inside > 0]
    return float(np.percentile(seen, 90)) if seen.size else 0.0


def _median_around(
    gray: npt.NDArray[np.uint8], point: npt.NDArray[np.float32], radius: int
) -> float:
    x = int(np.clip(round(float(point[0])), 0, gray.shape[1] - 1))
    y = int(np.clip(round(float(point[1])), 0, gray.shape[0] - 1))
    patch = gray[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
    return float(np.median(patch))
