"""Find the iris in an open eye and complete the eyeball behind the lids."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

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
    red = image[..., 0][seen].astype(np.float32)  # the channel in which sclera and skin are bright
    us, vs = u[seen], v[seen]
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


def complete_eyeball(image: Pixels, u: Array, v: Array, inside: Array, iris: Iris) -> Pixels:
    """Paint iris and white where the lids hide them."""
    known = inside > 1.2
    distance = np.hypot(u - iris.u, v - iris.v)
    made = image.copy()
    hidden_iris = ~known & (distance < iris.radius)
    made[hidden_iris] = _rings(image, distance, known, iris.radius)[hidden_iris]
    near = cv2.dilate(known.astype(np.uint8), np.ones((3, 3), np.uint8), iterations=9)
    hidden = (near > 0) & ~known & (distance >= iris.radius)
    return np.asarray(cv2.inpaint(made, hidden.astype(np.uint8), 3, cv2.INPAINT_TELEA))


def _rings(image: Pixels, distance: Array, known: npt.NDArray[np.bool_], radius: float) -> Pixels:
    """Color every pixel of the disk as the visible pixels at its distance from the center."""
    bins = np.linspace(0, radius, 13)
    colors = np.zeros((len(bins) - 1, 3), np.float32)
    last = np.full(3, 40, np.float32)
    for index in range(len(bins) - 1):
        ring = known & (distance >= bins[index]) & (distance < bins[index + 1])
        if int(ring.sum()) > 2:
            last = np.median(image[ring], axis=0).astype(np.float32)
        colors[index] = last
    centers = (bins[:-1] + bins[1:]) / 2
    channels = [np.interp(distance, centers, colors[:, c]) for c in range(3)]
    return np.stack(channels, -1).astype(np.uint8)
