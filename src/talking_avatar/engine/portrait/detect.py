"""Where the faces of a photo are.

Takes: an upright RGB photo of any size. Gives: `Detection`s, largest first.
Never: decides whether a photo is good enough.

The detector (BlazeFace, 128x128 input) sees faces that take up about an eighth of its input or
more. Smaller ones are found by showing it overlapping tiles of a half and a quarter of the photo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.networks import Network, opencv_threads

INPUT_PX = 128
MIN_SCORE = 0.5
"""As the network's authors use it."""
TILE_DIVISORS = (1, 2, 4)
_OVERLAP_IS_SAME = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """One face, in pixels of the photo.

    Attributes:
        center: float32 (2,): x, y of the box.
        size: Its larger side.
        score: 0 to 1.
        eyes: float32 (2, 2): the eye on the left of the picture, then the other; x, y.
    """

    center: npt.NDArray[np.float32]
    size: float
    score: float
    eyes: npt.NDArray[np.float32]

    @property
    def tilt_deg(self) -> float:
        """How far the head is tilted: positive clockwise, -180 to 180."""
        across = self.eyes[1] - self.eyes[0]
        return float(np.degrees(np.arctan2(across[1], across[0])))


class FaceDetector:
    """Finds faces that are upright within about 45 degrees."""

    def __init__(self) -> None:
        self._network = Network("face_detection_short_range", ("regressors", "classificators"))
        self._anchors = _anchors()

    def detect(
        self, rgb: npt.NDArray[np.uint8], *, tile_divisors: tuple[int, ...] = TILE_DIVISORS
    ) -> tuple[Detection, ...]:
        """Find the faces.

        Args:
            rgb: uint8 (H, W, 3).
            tile_divisors: Sizes of the tiles, as parts of the photo. ``(1,)`` looks once, at all of
                it, and takes 2 ms; the default about 90 ms.
        """
        found = [
            detection
            for left, top, side in _tiles(rgb.shape[1], rgb.shape[0], tile_divisors)
            for detection in self._in_tile(rgb, left, top, side)
        ]
        return _without_duplicates(found)

    def _in_tile(
        self, rgb: npt.NDArray[np.uint8], left: float, top: float, side: float
    ) -> Iterator[Detection]:
        boxes, logits = self._network(_tile_input(rgb, left, top, side))
        scores = 1 / (1 + np.exp(-np.clip(logits.reshape(-1), -50, 50)))
        boxes = boxes.reshape(-1, 8, 2) / np.float32(INPUT_PX)
        for i in np.flatnonzero(scores >= MIN_SCORE):
            points = boxes[i] + self._anchors[i]
            origin = np.array([left, top], np.float32)
            yield Detection(
                center=(points[0] * side + origin).astype(np.float32),
                size=float(boxes[i, 1].max() * side),
                score=float(scores[i]),
                eyes=(points[2:4] * side + origin).astype(np.float32),
            )


def _tile_input(
    rgb: npt.NDArray[np.uint8], left: float, top: float, side: float
) -> npt.NDArray[np.float32]:
    """One square of the photo, black outside of it, as the network wants it."""
    x0, y0 = max(0, round(left)), max(0, round(top))
    x1, y1 = min(rgb.shape[1], round(left + side)), min(rgb.shape[0], round(top + side))
    scale = INPUT_PX / side
    width, height = max(1, round((x1 - x0) * scale)), max(1, round((y1 - y0) * scale))
    with opencv_threads():
        small = cv2.resize(rgb[y0:y1, x0:x1], (width, height), interpolation=cv2.INTER_AREA)
    tile = np.full((INPUT_PX, INPUT_PX, 3), -1, np.float32)
    column, row = round(max(0.0, -left) * scale), round(max(0.0, -top) * scale)
    small = small[: INPUT_PX - row, : INPUT_PX - column]
    tile[row : row + small.shape[0], column : column + small.shape[1]] = small / 127.5 - 1
    return tile


def _tiles(
    width: int, height: int, divisors: tuple[int, ...]
) -> Iterator[tuple[float, float, float]]:
    """Left, top and side of overlapping squares that cover the photo."""
    for divisor in divisors:
        side = max(width, height) / divisor
        for top in _starts(height, side):
            for left in _starts(width, side):
                yield left, top, side


def _starts(length: float, side: float) -> list[float]:
    """Where tiles begin so that they overlap by half or more."""
    if length <= side:
        return [(length - side) / 2]
    num = int(np.ceil((length - side) / (side / 2))) + 1
    return [float(x) for x in np.linspace(0, length - side, num)]


def _without_duplicates(found: list[Detection]) -> tuple[Detection, ...]:
    """Keep the best of those that overlap; a tile may cut a face, so the score decides."""
    kept: list[Detection] = []
    for detection in sorted(found, key=lambda d: d.score, reverse=True):
        if all(_overlap(detection, other) < _OVERLAP_IS_SAME for other in kept):
            kept.append(detection)
    return tuple(sorted(kept, key=lambda d: d.size, reverse=True))


def _overlap(a: Detection, b: Detection) -> float:
    """Shared area of the two boxes, relative to the smaller one."""
    reach = (a.size + b.size) / 2 - np.abs(a.center - b.center)
    sides = np.clip(np.minimum(reach, min(a.size, b.size)), 0, None)
    return float(sides.prod() / min(a.size, b.size) ** 2)


def _anchors() -> npt.NDArray[np.float32]:
    """Where each of the 896 boxes is counted from: two on a 16x16 grid, six on an 8x8 one.

    (896, 1, 2), relative to the input; the first row of a box is its center, the second its size,
    so that only rows other than the second take the anchor.
    """
    points = [
        ((x + 0.5) / cells, (y + 0.5) / cells)
        for cells, num in ((16, 2), (8, 6))
        for y in range(cells)
        for x in range(cells)
        for _ in range(num)
    ]
    return np.array(points, np.float32)[:, None, :]
