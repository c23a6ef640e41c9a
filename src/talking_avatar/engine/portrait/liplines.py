"""Find where the lips of a photo really part.

The face mesh knows the mouth to a few pixels; a slit cut that far off leaves a piece of one lip on
the other. Takes the photo and the mesh's lip curves, gives curves that follow the picture: the dark
line between closed lips, or the edges of the lips around teeth.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from talking_avatar.engine.portrait.geometry import (
    INNER_LOWER,
    INNER_UPPER,
    OUTER_LOWER,
    OUTER_UPPER,
    Array,
    Curve,
    LocalFrame,
)
from talking_avatar.engine.portrait.grid import Pixels

REACH = 1.3
"""The curves are tabulated for |u| <= REACH half mouth widths."""
OPEN_GAP = 0.30
"""Gap of the mesh's inner lips, in half mouth widths, that is open whatever it shows."""
TEETH_DIP = 7.0
"""Redness (Lab a, 8 bit) by which teeth fall below both lips: 13 to 37 on the test portraits with
teeth, below 3 on those with closed lips."""
_CORNER = 1.12
_WIDER = 1.10  # the mesh's inner corners lie that much inside those of an open mouth


@dataclass(frozen=True, slots=True, eq=False)
class LipLines:
    """The lips of a photo in the mouth's own frame, as tables over u.

    Attributes:
        frame: Axes of the mouth; ``half`` is half its inner width.
        upper, lower: Inner edges of the lips.
        top, bottom: Outer edges of the lips.
        parting: Where closed lips meet.
        is_open: The photo shows a gap between the lips.
    """

    frame: LocalFrame
    upper: Curve
    lower: Curve
    top: Curve
    bottom: Curve
    parting: Curve
    is_open: bool

    @property
    def gap(self) -> float:
        """Widest gap between the lips in the photo, in half mouth widths."""
        return float((self.lower.values - self.upper.values).max()) / self.frame.half


def find_lip_lines(image: Pixels, landmarks: Array) -> LipLines:
    """Trace the lips of a photo.

    Args:
        image: RGB (H, W, 3).
        landmarks: (468, 3) in its pixels.
    """
    points = landmarks[:, :2]
    ends = points[OUTER_UPPER[-1]] - points[OUTER_UPPER[0]]
    frame = LocalFrame.between(points[INNER_UPPER[0]], points[INNER_UPPER[-1]], tilt=ends)
    half = frame.half
    knots = np.linspace(-REACH * half, REACH * half, 2 * int(REACH * half) + 1, dtype=np.float32)

    def curve(indices: tuple[int, ...], smooth: float, stretch: float = 1.0) -> Array:
        u, v = frame.local(points[list(indices)])
        order = np.argsort(u)
        table = np.interp(knots, stretch * u[order], v[order]).astype(np.float32)
        return _smooth(table, smooth * half)

    upper, lower = curve(INNER_UPPER, 0.08), curve(INNER_LOWER, 0.08)
    patch, rows = _unroll(image, frame, knots)
    redness = cv2.cvtColor(patch, cv2.COLOR_RGB2Lab)[..., 1].astype(np.float32)
    is_open = _shows_gap(redness, rows, upper, lower, knots / half)
    if is_open:
        upper, lower = (curve(i, 0.08, _WIDER) for i in (INNER_UPPER, INNER_LOWER))
        upper, lower = _trace_edges(redness, rows, upper, lower, knots / half, half)
    else:
        gray = cv2.GaussianBlur(cv2.cvtColor(patch, cv2.COLOR_RGB2GRAY), (0, 0), 1.2)
        dark = _standardize(gray.astype(np.float32))
        upper = lower = _trace(dark, rows, (upper + lower) / 2, 0.11 * half)
    upper, lower = _meet_at_corners(upper, lower, knots / half)
    top = np.minimum(curve(OUTER_UPPER, 0.12), upper - 0.03 * half)
    bottom = np.maximum(curve(OUTER_LOWER, 0.12), lower + 0.03 * half)
    parting = 0.7 * upper + 0.3 * lower  # the lower lip has more room to move
    curves = [Curve.over(knots, table) for table in (upper, lower, top, bottom, parting)]
    return LipLines(frame, curves[0], curves[1], curves[2], curves[3], curves[4], is_open)


def _smooth(table: Array, sigma: float) -> Array:
    column = cv2.GaussianBlur(
        table[:, None], (0, 0), max(sigma, 0.5), borderType=cv2.BORDER_REPLICATE
    )
    return np.asarray(column[:, 0], np.float32)


def _unroll(image: Pixels, frame: LocalFrame, knots: Array) -> tuple[Pixels, Array]:
    """Lay the mouth flat: columns are ``knots``, rows are v in half pixels."""
    rows = np.arange(-0.9 * frame.half, 0.9 * frame.half, 0.5, dtype=np.float32)
    u, v = np.meshgrid(knots, rows)
    xs, ys = frame.image(u, v)
    return np.asarray(
        cv2.remap(image, xs, ys, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    ), rows


def _shows_gap(redness: Array, rows: Array, upper: Array, lower: Array, x: Array) -> bool:
    """Tell lips around teeth from lips that touch: teeth are less red than both lips."""
    middle = np.abs(x) < 0.4
    half = float(-rows[0]) / 0.9
    if float((lower - upper)[len(x) // 2]) > OPEN_GAP * half:
        return True
    offsets = np.arange(-0.35, 0.36, 0.05) * half
    centers = (upper + lower)[middle] / 2
    columns = redness[:, middle].T
    profile = np.array(
        [
            np.mean([np.interp(c + o, rows, r) for c, r in zip(centers, columns, strict=True)])
            for o in offsets
        ]
    )
    lips = min(profile[:5].max(), profile[-5:].max())
    return bool(lips - profile[3:-3].min() > TEETH_DIP)


def _trace_edges(
    redness: Array, rows: Array, upper: Array, lower: Array, x: Array, half: float
) -> tuple[Array, Array]:
    """Follow the edges of both lips around teeth; near the corners trust the mesh."""
    edge = _edge(cv2.GaussianBlur(redness, (0, 0), 1.5), max(3, int(0.06 * half)))
    trust_high = np.clip((1.05 - np.abs(x)) / 0.2, 0, 1)
    trust_low = np.clip((0.85 - np.abs(x)) / 0.3, 0, 1)  # further out the edge is that of the dark
    high = _trace(edge, rows, upper, 0.14 * half)
    reach = np.ones((2 * int(0.13 * half) + 1, 1), np.uint8)
    high = _smooth(cv2.erode(high[:, None], reach)[:, 0], 0.10 * half)  # over the arcs of the gums
    low = _smooth(_trace(-edge, rows, lower, 0.14 * half), 0.04 * half) + 0.02 * half
    return upper + (high - upper) * trust_high, lower + (low - lower) * trust_low


def _edge(field: Array, reach: int) -> Array:
    """Strength of a step from high above to low below, standardized."""
    kernel = np.concatenate([-np.ones(reach), [0], np.ones(reach)]).astype(np.float32) / reach
    return _standardize(cv2.filter2D(field, cv2.CV_32F, kernel[:, None]))


def _standardize(field: Array) -> Array:
    return np.asarray((field - field.mean()) / (field.std() + 0.5), np.float32)


def _trace(cost: Array, rows: Array, prior: Array, sigma: float) -> Array:
    """Find the cheapest smooth path across the columns near ``prior`` (dynamic programming)."""
    total = cost + 0.5 * ((rows[:, None] - prior[None]) / sigma) ** 2
    num_rows, num_columns = total.shape
    best = total[:, 0]
    steps = np.arange(-3, 4)
    origin = np.zeros((num_columns, num_rows), np.int64)
    for column in range(1, num_columns):
        padded = np.pad(best, 3, constant_values=np.inf)
        moved = np.stack([padded[3 + s : 3 + s + num_rows] + 0.10 * s * s for s in steps])
        choice = moved.argmin(0)
        origin[column] = np.arange(num_rows) + steps[choice]
        best = moved[choice, np.arange(num_rows)] + total[:, column]
    path = np.empty(num_columns, np.int64)
    path[-1] = best.argmin()
    for column in range(num_columns - 1, 0, -1):
        path[column - 1] = origin[column, path[column]]
    return _smooth(rows[path], num_columns / 70)


def _meet_at_corners(upper: Array, lower: Array, x: Array) -> tuple[Array, Array]:
    """Close the gap at and beyond the corners of the mouth."""
    lower = np.maximum(lower, upper)
    inside = np.clip((_CORNER - np.abs(x)) / 0.12, 0, 1)
    middle = (upper + lower) / 2
    weight = inside * inside * (3 - 2 * inside)
    return middle + (upper - middle) * weight, middle + (lower - middle) * weight
