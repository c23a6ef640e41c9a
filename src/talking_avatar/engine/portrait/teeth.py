"""Draw rows of teeth. Knows no photo: gives reflectance and coverage; the caller lights them.

Lengths are in half mouth widths, about 25 mm: a central incisor is 8.5 mm wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from talking_avatar.engine.portrait.geometry import Array, smoothstep

SCALE = 88
"""Pixels of a drawn row per half mouth width."""
_FINE = 3
_GUM = np.array([0.62, 0.30, 0.30], np.float32)
_ENAMEL = np.array([1.0, 0.97, 0.90], np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TeethRow:
    """A row of teeth as a picture.

    Attributes:
        pixels: float32 (h, w, 4): reflectance relative to white enamel, then coverage.
        reach: It spans -reach to reach across.
        root: v of the first row when the biting edge of the middle is at v = 0; its last row lies
            below the edge.
    """

    pixels: Array
    reach: float
    root: float

    def sample(self, x: Array, v: Array) -> Array:
        """Look it up at (x, v) in half mouth widths, v = 0 at the biting edge: (h, w, 4)."""
        xs = ((x + self.reach) * SCALE - 0.5).astype(np.float32)
        ys = ((v - self.root) * SCALE - 0.5).astype(np.float32)
        return np.asarray(
            cv2.remap(self.pixels, xs, ys, cv2.INTER_LINEAR, borderValue=(0, 0, 0, 0))
        )


@dataclass(frozen=True, slots=True)
class _Tooth:
    width: float
    height: float
    pointed: float


_UPPER = (
    _Tooth(0.335, 0.42, 0.03),
    _Tooth(0.265, 0.385, 0.05),
    _Tooth(0.265, 0.40, 0.14),
    _Tooth(0.19, 0.35, 0.10),
    _Tooth(0.14, 0.32, 0.08),
)
_LOWER = (
    _Tooth(0.205, 0.33, 0.02),
    _Tooth(0.215, 0.335, 0.03),
    _Tooth(0.225, 0.345, 0.12),
    _Tooth(0.18, 0.30, 0.10),
    _Tooth(0.15, 0.28, 0.08),
)


def upper_row() -> TeethRow:
    """Draw the upper teeth; the edge curves up to the sides."""
    return _row(_UPPER, arc=0.10, upside_down=False)


def lower_row() -> TeethRow:
    """Draw the lower teeth; gums below."""
    return _row(_LOWER, arc=0.05, upside_down=True)


def _row(teeth: tuple[_Tooth, ...], arc: float, *, upside_down: bool) -> TeethRow:
    reach = sum(tooth.width for tooth in teeth) + 0.05
    root, below = -0.72, 0.06
    per_unit = SCALE * _FINE
    xs = (np.arange(int(2 * reach * per_unit)) + 0.5) / per_unit - reach
    ys = (np.arange(int((below - root) * per_unit)) + 0.5) / per_unit + root
    x, y = np.meshgrid(xs, ys)
    y = y + arc * x**2  # the edge of each side tooth lies higher
    color = np.empty((*x.shape, 3), np.float32)
    color[:] = _GUM
    cover = smoothstep(-y, teeth[0].height * 0.90, teeth[0].height * 0.90 + 0.03)
    # Neighbors touch: what is seen between them is a shaded side, not the dark behind.
    between = smoothstep(-y, 0.06, 0.12) * smoothstep(reach - 0.05 - np.abs(x), 0.0, 0.02)
    between = between * smoothstep(y, -0.30, -0.26)
    color[:] += (_ENAMEL * 0.66 - color) * between[..., None]
    cover = np.maximum(cover, between)
    for side in (-1, 1):
        start = 0.0
        for tooth in teeth:
            center = side * (start + tooth.width / 2)
            middle, reach_px = (center + reach) * per_unit, 0.6 * tooth.width * per_unit
            near = slice(max(int(middle - reach_px), 0), int(middle + reach_px) + 1)
            across = (x[:, near] - center) / (tooth.width / 2)
            _draw(color[:, near], cover[:, near], tooth, across, y[:, near])
            start += tooth.width
    curve = 1 - 0.42 * np.clip(np.abs(x) / reach, 0, 1) ** 2.2  # turned away along the arch
    pixels = np.dstack([color * curve[..., None], cover]).astype(np.float32)
    size = (int(2 * reach * SCALE), int((below - root) * SCALE))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    pixels = np.asarray(cv2.GaussianBlur(small, (0, 0), 0.8), np.float32)
    if upside_down:
        return TeethRow(np.ascontiguousarray(pixels[::-1]), reach, -below)
    return TeethRow(pixels, reach, root)


def _draw(color: Array, cover: Array, tooth: _Tooth, t: Array, y: Array) -> None:
    """Draw one tooth: ``t`` is -1 to 1 across it, ``y`` 0 at the biting edge of the middle."""
    across = np.abs(t)
    edge = (
        -tooth.pointed * tooth.height * across**2 - 0.03 * across**6 - (0.42 - tooth.height) * 0.5
    )
    neck = -tooth.height + 0.05 * across**2
    side = 1.0 - 0.05 * smoothstep(-y, tooth.height * 0.4, tooth.height)
    inside = smoothstep(side - across, -0.03, 0.06) * smoothstep(edge - y, -0.006, 0.012)
    inside = inside * smoothstep(y - neck, -0.01, 0.02)
    round_off = 1 - 0.13 * across**4
    along = np.clip(-y / tooth.height, 0, 1)
    tone = 0.93 + 0.07 * smoothstep(along, 0.0, 0.25) - 0.08 * smoothstep(along, 0.55, 1.0)
    enamel = _ENAMEL * (1 - np.array([0, 0.02, 0.07]) * smoothstep(along, 0.4, 1.0)[..., None])
    shade = (round_off * tone)[..., None] * enamel
    weight = inside[..., None]
    color[:] = color * (1 - weight) + shade * weight
    np.maximum(cover, inside, out=cover)
