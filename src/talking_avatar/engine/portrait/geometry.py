"""Plane geometry of a face: landmark groups, local frames, smooth interpolation.

Takes landmarks, gives coordinates and scalar fields. Knows no pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Floating point of any shape; float32 in all that a frame computes."""

INNER_UPPER = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
INNER_LOWER = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
OUTER_UPPER = (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291)
OUTER_LOWER = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291)
OVAL = (
    *(10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377),
    *(152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109),
)
"""Indices into MediaPipe's 468-point face mesh, left to right as seen in the picture."""

FOREHEAD, CHIN, NOSE_TIP, NOSE_BASE = 10, 152, 1, 2
LEFT_EAR, RIGHT_EAR = 234, 454


@dataclass(frozen=True, slots=True, eq=False)
class LocalFrame:
    """Axes of a feature: u from its left to its right end, v down, in pixels.

    Attributes:
        origin: (2,) midpoint between the two ends.
        axes: (2, 2) rows are the directions of u and v in the image.
        half: Half the distance between the ends.
    """

    origin: Array
    axes: Array
    half: float

    @classmethod
    def between(cls, left: Array, right: Array, tilt: Array | None = None) -> LocalFrame:
        """Make the frame of two end points; ``tilt`` gives another direction of u."""
        along = right - left if tilt is None else tilt
        cos, sin = along / np.linalg.norm(along)
        axes = np.array([[cos, sin], [-sin, cos]], np.float32)
        half = float(np.linalg.norm(right - left)) / 2
        return cls(((left + right) / 2).astype(np.float32), axes, half)

    def local(self, points: Array) -> tuple[Array, Array]:
        """Turn image points (..., 2) into u and v."""
        rel = np.asarray(points, np.float32) - self.origin
        return rel @ self.axes[0], rel @ self.axes[1]

    def vector(self, du: Array, dv: Array) -> Array:
        """Turn a displacement along u and v into one (2, ...) along x and y."""
        (ux, uy), (vx, vy) = self.axes
        return np.stack([du * ux + dv * vx, du * uy + dv * vy]).astype(np.float32)

    def image(self, u: Array, v: Array) -> tuple[Array, Array]:
        """Turn u and v into x and y."""
        dx, dy = self.vector(u, v)
        return dx + self.origin[0], dy + self.origin[1]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A function of one coordinate, as a table of evenly spaced values; constant beyond its ends.

    Attributes:
        values: (N,).
        start, step: Coordinate of the first value, and the distance between two.
    """

    values: Array
    start: float
    step: float

    @classmethod
    def over(cls, knots: Array, values: Array) -> Curve:
        """Make the curve through ``values`` at evenly spaced ``knots``."""
        step = float(knots[-1] - knots[0]) / (len(knots) - 1)
        return cls(np.asarray(values, np.float32), float(knots[0]), step)

    def __call__(self, at: Array) -> Array:
        """Look it up at every element of a 2-D array, to 1/32 of a step (0.05 ms for 20,000)."""
        index = np.asarray((at - self.start) / self.step, np.float32)
        zero = np.zeros_like(index)
        border = cv2.BORDER_REPLICATE
        found = cv2.remap(self.values[None], index, zero, cv2.INTER_LINEAR, borderMode=border)
        return np.asarray(found, np.float32)


def smoothstep(x: Array | float, start: Array | float, end: Array | float) -> Array:
    """Rise from 0 at ``start`` to 1 at ``end`` with flat ends."""
    t = np.clip((x - start) / (end - start), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def bump(x: Array, center: float, width: float) -> Array:
    """Gaussian of unit height."""
    return np.exp(-(((x - center) / width) ** 2)).astype(np.float32)


def _kernel(squared: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(squared * np.log(squared + 1e-9), np.float64)


def thin_plate(points: Array, values: Array, at: Array, *, smoothing: float = 1e-3) -> Array:
    """Interpolate scattered values by a thin-plate spline.

    Args:
        points: (N, 2).
        values: (N,).
        at: (..., 2) where to evaluate.
        smoothing: 0 passes through the values; larger bends less.

    Returns:
        Values of shape ``at.shape[:-1]``.
    """
    center = points.mean(0)
    scale = float(np.abs(points - center).max())
    knots = ((points - center) / scale).astype(np.float64)
    num = len(knots)
    delta = knots[:, None] - knots[None]
    system = np.zeros((num + 3, num + 3))
    system[:num, :num] = _kernel((delta**2).sum(-1)) + smoothing * np.eye(num)
    system[:num, num] = system[num, :num] = 1
    system[:num, num + 1 :] = knots
    system[num + 1 :, :num] = knots.T
    solution = np.linalg.solve(system, np.concatenate([values, np.zeros(3)]))
    query = ((at.reshape(-1, 2) - center) / scale).astype(np.float64)
    squared = ((query**2).sum(1)[:, None] + (knots**2).sum(1)[None] - 2 * query @ knots.T).clip(0)
    result = _kernel(squared) @ solution[:num] + solution[num] + query @ solution[num + 1 :]
    return np.asarray(result.reshape(at.shape[:-1]), np.float32)
