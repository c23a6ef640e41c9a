"""Tells a drawn face from a photographed one, by its pixels.

The networks find faces in cartoons too, and would animate them badly. A photo has grain and shading
everywhere; even after strong compression few places of a face are perfectly flat. A drawing is
flat nearly everywhere. Painted pictures with brush strokes or added noise count as photos.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.landmarks import Mesh
from talking_avatar.engine.portrait.networks import opencv_threads

MAX_FLAT_SHARE = 0.36
"""31 portraits: 0.00 to 0.04; as JPEG of quality 10, or darkened to a quarter, up to 0.28.
Flat, shaded and blurred drawings, as PNG and JPEG: 0.44 to 1."""
FACE_PX = 200
"""Faces are reduced to this height, so that blur and grain of large photos do not matter."""
_CLIPPED_BELOW, _CLIPPED_ABOVE = 5, 250
_DARK = 64
"""In darker faces one step is texture already: there are few steps left."""
_MIN_MEASURED_SHARE = 0.12
"""Over- and underexposed pixels are flat in photos too and do not count, unless nothing else is
there, as in line art."""


def flat_share(rgb: npt.NDArray[np.uint8], mesh: Mesh) -> float:
    """How much of a face has no texture at all: at most one step of gray within 3x3 pixels."""
    low = np.maximum(mesh.points[:, :2].min(axis=0).astype(int), 0)
    high = mesh.points[:, :2].max(axis=0).astype(int) + 1
    scale = min(1.0, FACE_PX / mesh.height_px)
    with opencv_threads():
        gray = cv2.cvtColor(rgb[low[1] : high[1], low[0] : high[0]], cv2.COLOR_RGB2GRAY)
        gray = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        hull = cv2.convexHull(((mesh.points[:, :2] - low) * scale).round().astype(np.int32))
        inside = np.zeros(gray.shape, np.uint8)
        cv2.fillConvexPoly(inside, hull, 1)
        neighbors = np.ones((3, 3), np.uint8)
        contrast = cv2.dilate(gray, neighbors) - cv2.erode(gray, neighbors)
    face = inside > 0
    measured = face & (gray > _CLIPPED_BELOW) & (gray < _CLIPPED_ABOVE)
    if measured.sum() < _MIN_MEASURED_SHARE * face.sum():
        measured = face
    one_step = 1 if np.median(gray[measured]) >= _DARK else 0
    return float((contrast[measured] <= one_step).mean())
