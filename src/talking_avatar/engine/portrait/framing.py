"""Where to cut the photo, as a portrait photographer would, and the cut itself.

Takes: a `StillImage` and where its face is. Gives: an image of the output size and the map into it.
Never: stretches; the photo's aspect ratio is kept.

The crop is searched: the face's share of the height, its place across, and the height of its eyes
each have a best value and a tolerance, and showing background costs more than any of them within
reason. So a photo with room is framed ideally, a tight one is moved and enlarged first, and only
one that is tighter than that gets background, softly.
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
EYES_AT, EYES_TOLERANCE, EYES_RANGE = 0.43, 0.06, (0.22, 0.55)
"""From the top; a bit above the middle."""
CENTER_TOLERANCE, ACROSS_RANGE = 0.10, (0.34, 0.66)
ZOOM_RANGE, NUM_ZOOMS = (0.75, 2.2), 60
"""Of the scale at which the face has its best share."""
ANY_BACKGROUND_COST, BACKGROUND_COST = 6.0, 80.0
"""Once, and for the share of the frame that shows it: once it must show, no need to be tight."""
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
    scales = [
        *(best_share * height / face.height * np.geomspace(*ZOOM_RANGE, NUM_ZOOMS)),
        width / photo_width,  # just fills the frame
        height / photo_height,
    ]
    lowest, highest = scales[0], scales[NUM_ZOOMS - 1]
    candidates = [
        Crop(left, top, float(scale))
        for scale in scales
        if lowest <= scale <= highest
        for left in _starts(face.x, width / scale, photo_width, 0.5, ACROSS_RANGE)
        for top in _starts(face.eyes_y, height / scale, photo_height, EYES_AT, EYES_RANGE)
    ]

    def cost(crop: Crop) -> float:
        window_width, window_height = width / crop.scale, height / crop.scale
        empty = 1 - _overlap(crop.left, window_width, photo_width) * _overlap(
            crop.top, window_height, photo_height
        )
        return float(
            ((face.height / window_height - best_share) / FACE_TOLERANCE) ** 2
            + (((face.eyes_y - crop.top) / window_height - EYES_AT) / EYES_TOLERANCE) ** 2
            + (((face.x - crop.left) / window_width - 0.5) / CENTER_TOLERANCE) ** 2
            + ANY_BACKGROUND_COST * (empty > 1e-6)
            + BACKGROUND_COST * empty
            + ENLARGED_COST * max(0.0, np.log2(crop.scale) - 1)
        )

    return min(candidates, key=cost)


def _starts(
    at: float, window: float, photo: int, ideal: float, allowed: tuple[float, float]
) -> tuple[float, float]:
    """Where a window may begin along one axis: with ``at`` in its ideal place, or inside the photo.

    The second is as near to the first as the photo lets it; a window larger than the photo has all
    of the photo in it. Neither puts ``at`` beyond the allowed places.
    """
    first = at - ideal * window
    low, high = sorted((0.0, photo - window))
    inside = min(max(first, low), high)
    return first, min(max(inside, at - allowed[1] * window), at - allowed[0] * window)


def _overlap(start: float, window: float, photo: int) -> float:
    """Share of the window that lies in the photo, along one axis."""
    return max(0.0, min(start + window, photo) - max(start, 0.0)) / window


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
