"""Where to cut the photo, as a portrait photographer would, and the cut itself.

Takes: a `StillImage` and where its face is. Gives: an image of the output size and the map into it.
Never: stretches; the photo's aspect ratio is kept.

The crop is searched on a grid: the face's share of the height, its place across, and the height of
its eyes each have a best value and a tolerance, and showing background costs more than any of them
within reason. So a photo with room is framed ideally, a tight one is moved and enlarged first, and
only one that is tighter than that gets background, softly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.photo import RGB, Region, StillImage

FACE_SHARE, FACE_TOLERANCE = 0.37, 0.10
"""Forehead to chin, of the frame's height."""
MAX_FACE_WIDTH_SHARE = 0.72
"""In a narrow frame: forehead to chin, of the frame's width, so that ears and hair fit."""
EYES_AT, EYES_TOLERANCE = 0.43, 0.06
"""From the top; a bit above the middle."""
CENTER_TOLERANCE = 0.10
BACKGROUND_COST = 200.0
ENLARGED_COST = 0.5
"""For each doubling beyond the first."""
FADE_SHARE = 0.07
"""Of the frame's height: how softly the photo ends."""


@dataclass(frozen=True, slots=True)
class FacePlace:
    """What framing must know of a face, in pixels of the photo.

    Attributes:
        x: Middle of the face.
        eyes_y: Height of the eyes.
        height: Forehead to chin.
    """

    x: float
    eyes_y: float
    height: float


@dataclass(frozen=True, slots=True)
class Crop:
    """A window on the photo, in the photo's pixels; it may reach beyond the photo.

    Attributes:
        left, top: Of its upper left corner.
        scale: Pixels of the frame for one of the photo.
    """

    left: float
    top: float
    scale: float


def choose_crop(
    face: FacePlace, photo_width: int, photo_height: int, width: int, height: int
) -> Crop:
    """Find the best window of ``width`` : ``height`` for a face."""
    best_share = min(FACE_SHARE, MAX_FACE_WIDTH_SHARE * width / height)
    share, eyes, across = np.meshgrid(
        best_share * np.geomspace(0.75, 2.2, 55),
        np.linspace(EYES_AT - 0.21, EYES_AT + 0.12, 34),
        np.linspace(0.34, 0.66, 33),
        indexing="ij",
    )
    window_height = face.height / share
    window_width = window_height * width / height
    left = face.x - across * window_width
    top = face.eyes_y - eyes * window_height
    shown_width = np.minimum(left + window_width, photo_width) - np.maximum(left, 0)
    shown_height = np.minimum(top + window_height, photo_height) - np.maximum(top, 0)
    empty = 1 - np.clip(shown_width, 0, None) * np.clip(shown_height, 0, None) / (
        window_width * window_height
    )
    doublings = np.clip(np.log2(height / window_height) - 1, 0, None)
    cost = (
        ((share - best_share) / FACE_TOLERANCE) ** 2
        + ((eyes - EYES_AT) / EYES_TOLERANCE) ** 2
        + ((across - 0.5) / CENTER_TOLERANCE) ** 2
        + BACKGROUND_COST * np.clip(empty - 1e-6, 0, None)
        + ENLARGED_COST * doublings
    )
    best = np.unravel_index(np.argmin(cost), cost.shape)
    return _without_slivers(
        Crop(float(left[best]), float(top[best]), height / float(window_height[best])),
        photo_width,
        photo_height,
        width,
        height,
    )


def _without_slivers(
    crop: Crop, photo_width: int, photo_height: int, width: int, height: int
) -> Crop:
    """Shift a window that fits by size but sticks out by less than a step of the grid."""

    def shifted(start: float, length: float, limit: int) -> float:
        inside = min(max(start, 0.0), limit - length)
        return inside if length <= limit and abs(inside - start) < 0.02 * length else start

    return Crop(
        shifted(crop.left, width / crop.scale, photo_width),
        shifted(crop.top, height / crop.scale, photo_height),
        crop.scale,
    )


def cut(
    image: StillImage, crop: Crop, width: int, height: int, background: RGB
) -> npt.NDArray[np.uint8]:
    """Read the window at the frame's size; the background where the photo ends.

    Returns:
        uint8 RGB (height, width, 3).
    """
    x0, x1 = _covered(crop.left, image.width, crop.scale, width)
    y0, y1 = _covered(crop.top, image.height, crop.scale, height)
    region = Region(
        crop.left + x0 / crop.scale,
        crop.top + y0 / crop.scale,
        (x1 - x0) / crop.scale,
        (y1 - y0) / crop.scale,
    )
    part = image.read(region, x1 - x0, y1 - y0)
    if part.shape[:2] == (height, width):
        return part
    frame = np.empty((height, width, 3), np.uint8)
    frame[:] = background
    fade = round(FADE_SHARE * height)
    weight = np.outer(
        _fade(y1 - y0, fade, before=y0 > 0, after=y1 < height),
        _fade(x1 - x0, fade, before=x0 > 0, after=x1 < width),
    )[..., None]
    mixed = part * weight + np.asarray(background, np.float32) * (1 - weight)
    frame[y0:y1, x0:x1] = np.rint(mixed).astype(np.uint8)
    return frame


def _covered(start: float, photo_length: int, scale: float, length: int) -> tuple[int, int]:
    """First and last + 1 of the frame's pixels that lie wholly in the photo, along one axis."""
    # Rounding errors of the grid's arithmetic must not cost a line of pixels.
    first = int(np.ceil(max(0.0, -start * scale) - 1e-6))
    last = int(np.floor(min(float(length), (photo_length - start) * scale) + 1e-6))
    return first, last


def _fade(length: int, ramp: int, *, before: bool, after: bool) -> npt.NDArray[np.float32]:
    """Weights along one axis: 1, falling smoothly to 0 at the ends that meet the background."""
    distance = np.arange(length, dtype=np.float32) + 0.5
    weight = np.ones(length, np.float32)
    ramp_px = np.float32(ramp)
    for meets, steps in ((before, distance), (after, distance[::-1])):
        if meets:
            t = np.clip(steps / ramp_px, 0, 1)
            weight *= t * t * (3 - 2 * t)
    return weight
