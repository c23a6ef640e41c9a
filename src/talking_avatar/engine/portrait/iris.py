"""Find the iris in an open eye."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from talking_avatar.engine.portrait.geometry import Array
from talking_avatar.engine.portrait.grid import Pixels

_RADII = (0.34, 0.38, 0.42, 0.46)
"""Radius of an iris in half eye widths: 11.7 mm across in an opening of about 30 mm."""


@dataclass(frozen=True, slots=True)
class Iris:
    """A disk in the eye's own frame, in pixels."""

    u: float
    v: float
    radius: float


def find_iris(image: Pixels, u: Array, v: Array, inside: Array, half: float) -> Iris:
    """Find the dark disk that stands out most from its surroundings inside the opening.

    Args:
        image: RGB (h, w, 3).
        u: (h, w) across, in the eye's frame.
        v: (h, w) down.
        inside: (h, w) distance inside the opening, negative outside.
        half: Half the eye's width.
    """
    seen = inside > 0.5
    if int(seen.sum()) < 12:
        return Iris(0.0, 0.0, 0.4 * half)
    few = slice(None, None, 1 + int(seen.sum()) // 600)  # enough for its averages
    # Red: the channel in which sclera and skin are bright.
    red, us, vs = image[..., 0][seen][few].astype(np.float32), u[seen][few], v[seen][few]
    middle = float(vs.mean())
    best = (-np.inf, Iris(0.0, middle, 0.4 * half))
    for center_u in np.linspace(-0.45, 0.45, 25) * half:
        for center_v in middle + np.linspace(-0.18, 0.18, 9) * half:
            distance = np.hypot(us - center_u, vs - center_v)
            for radius in _RADII:
                score = _contrast(red, distance, radius * half)
                score -= 6 * ((center_v - middle) / (0.2 * half)) ** 2
                if score > best[0]:
                    best = (score, Iris(float(center_u), float(center_v), radius * half))
    return best[1]


def _contrast(values: Array, distance: Array, radius: float) -> float:
    disk = distance < 0.95 * radius
    ring = (distance > 1.08 * radius) & (distance < 1.6 * radius)
    if disk.sum() < 6 or ring.sum() < 6:
        return -np.inf
    return float(values[ring].mean() - values[disk].mean())
