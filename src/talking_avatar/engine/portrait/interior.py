"""What is seen between the lips: the photo's own teeth or drawn ones, tongue, dark.

Takes the photo once, then for each frame the part of the mouth's own plane that shows; gives its
colors. The upper teeth stand still with the head, the lower teeth and the tongue go with the jaw.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np

from talking_avatar.engine.portrait.face import MouthShape
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import Array, smoothstep
from talking_avatar.engine.portrait.grid import Pixels, Texture
from talking_avatar.engine.portrait.liplines import LipLines
from talking_avatar.engine.portrait.mouth import MouthMotion
from talking_avatar.engine.portrait.teeth import TeethRow, lower_row, upper_row

_CHEEKS = (50, 280, 205, 425, 117, 346)
_EYES = ((33, 159, 133, 145), (362, 386, 263, 374))
_DEEP = np.array([0.17, 0.065, 0.06], np.float32)
_SOFT = np.array([0.34, 0.14, 0.13], np.float32)
_BEHIND = np.array([0.78, 0.76, 0.74], np.float32)
_WARMTH = np.array([0.22, -0.08, -0.12], np.float32)
_TONGUE = np.array([0.70, 0.36, 0.36], np.float32)


def tooth_light(photo: FramedPhoto) -> Array:
    """Estimate how white enamel would look in the photo's light, RGB 0 to 255.

    The whites of the eyes reflect about as much as teeth and stand in the same light; the skin
    says how bright and how warm that light is when the eyes are hidden.
    """
    skin = _skin(photo)
    level = 0.92 * float(skin.max()) + 12
    if photo.eyes_visible:
        points = photo.landmarks[:, :2]
        whites = []
        for left, top, right, bottom in _EYES:
            middle = (points[top] + points[bottom]) / 2
            whites += [0.45 * points[end] + 0.55 * middle for end in (left, right)]
        level = max(level * 0.85, 0.95 * float(_pick(photo.image, np.array(whites)).max()))
    tint = 1 - 0.22 * (1 - skin / skin.max())
    return np.asarray(np.clip(level, 70, 228) * tint, np.float32)


def _skin(photo: FramedPhoto) -> Array:
    colors = _pick(photo.image, photo.landmarks[list(_CHEEKS), :2])
    return np.asarray(np.median(colors, 0) + 1, np.float32)


def _chroma(photo: FramedPhoto) -> float:
    skin = _skin(photo)
    return float((skin.max() - skin.min()) / skin.max())


def _pick(image: Pixels, points: Array) -> Array:
    """Average color around points, (N, 3)."""
    height, width = image.shape[:2]
    colors = []
    for x, y in points:
        column, row = int(np.clip(x, 0, width - 1)), int(np.clip(y, 0, height - 1))
        part = image[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3]
        colors.append(part.reshape(-1, 3).mean(0))
    return np.array(colors, np.float32)


class Interior:
    """The inner mouth of one photo. Immutable."""

    def __init__(self, photo: FramedPhoto, lines: LipLines, texture: Texture) -> None:
        self._lines, self._frame = lines, lines.frame
        self._photo = texture
        light = tooth_light(photo)
        # A photo without color has no red mouth either.
        vivid = float(smoothstep(_chroma(photo), 0.03, 0.16))
        self._deep, self._soft, self._tongue_color = (
            _fade(color, vivid) * light for color in (_DEEP, _SOFT, _TONGUE)
        )
        self._warmth = vivid * _WARMTH
        self._upper = _lit(upper_row(), light, vivid)
        self._lower = _lit(lower_row(), light * _BEHIND, vivid)
        self._parting = float(lines.parting(np.zeros((1, 1), np.float32))[0, 0])

    def render(self, u: Array, v: Array, motion: MouthMotion, shape: MouthShape) -> Array:
        """Color a part of the mouth's plane.

        Args:
            u: (h, w) across, in pixels of the mouth's frame.
            v: (h, w) down.
            motion: The lips'.
            shape: Where the tongue is.

        Returns:
            float32 (h, w, 3), 0 to 255.
        """
        half = self._frame.half
        x, depth = u / half, (v - self._parting) / half
        drop, lift = motion.drop / half, motion.lift / half
        jaw = 0.85 * drop + 0.10 * motion.jaw / half
        deep = np.clip(1 - (x / 1.0) ** 2 - ((depth - 0.30 * drop) / (0.25 + drop)) ** 2, 0, 1)
        color = self._soft + (self._deep - self._soft) * smoothstep(deep, 0.0, 0.7)[..., None]
        color = self._tongue(color, x, depth, jaw, float(shape.tongue))
        bite = depth - (0.02 + jaw - 0.10 * max(motion.spread, 0.0) + 0.10 * motion.tuck)
        lower = self._lower.sample(x, bite)
        # Between lips hardly apart they lie in the dark: a sliver of them reads as a chip.
        seen = smoothstep((drop + lift), 0.16, 0.34)
        lower[..., 3] *= (1 - smoothstep(np.abs(x), 0.45, 0.80)) * seen
        color = _over(color, lower)
        color = _over(color, self._upper.sample(x, depth - 0.05 - 0.05 * motion.tuck))
        shade = self._shade(u, depth, lift, motion)[..., None]
        color = color * self._warm(shade)
        if self._lines.is_open:  # the photo has shaded its own teeth already
            color = self._own_teeth(color, u, v, self._warm(shade ** (0.5 + 0.5 * motion.pucker)))
        return color

    def _tongue(self, color: Array, x: Array, depth: Array, jaw: float, raised: float) -> Array:
        top = 0.17 + 0.42 * jaw - raised * (0.14 + 0.30 * jaw)
        width = 0.66 - 0.14 * raised
        dome = 1 - (x / width) ** 2 - ((depth - top - 0.12) / 0.40) ** 2
        cover = smoothstep(dome, 0.0, 0.55)[..., None]
        tone = 0.50 + 0.42 * smoothstep(dome, 0.1, 0.9) + 0.12 * raised
        tone = tone * (1 - 0.10 * np.exp(-((x / 0.05) ** 2)))
        return np.asarray(
            color * (1 - cover) + self._tongue_color * tone[..., None] * cover, np.float32
        )

    def _own_teeth(self, color: Array, u: Array, v: Array, shade: Array) -> Array:
        lines = self._lines
        upper, lower = lines.upper(u), lines.lower(u)
        inset = np.minimum(1.5, (lower - upper) / 3)
        xs, ys = self._photo.positions(
            np.stack(self._frame.image(u, np.clip(v, upper + inset, lower - inset)))
        )
        own = cv2.remap(self._photo.pixels, xs, ys, cv2.INTER_LINEAR)[..., :3]
        cover = (1 - smoothstep(v, lower - inset - 1.5, lower - inset + 0.5)) * smoothstep(
            lower - upper, 1.0, 4.0
        )
        cover = cover[..., None]
        return np.asarray(color * (1 - cover) + own * shade * cover, np.float32)

    def _warm(self, shade: Array) -> Array:
        """Turn a shadow (h, w, 1) into a color: light inside a mouth has passed by red walls."""
        return np.asarray(shade * (1 + (1 - shade) * self._warmth), np.float32)

    def _shade(self, u: Array, depth: Array, lift: float, motion: MouthMotion) -> Array:
        """Shadow of the upper lip, and the dark of the corners."""
        x = u / self._frame.half
        narrow = 1 + 0.08 * motion.spread - 0.34 * motion.pucker
        lip = -lift * np.clip(1 - x**2, 0, 1)
        under = 0.58 + 0.42 * smoothstep(depth - lip, -0.03, 0.17)
        aside = 1 - 0.62 * smoothstep(np.abs(x) / narrow, 0.45, 1.02)
        gap = (motion.lift + motion.drop) / self._frame.half
        light = 0.70 + 0.30 * float(smoothstep(float(gap), 0.0, 0.35))
        return np.asarray(under * aside * light * (1 - 0.35 * motion.pucker), np.float32)


def _over(color: Array, layer: Array) -> Array:
    cover = layer[..., 3:]
    return np.asarray(color * (1 - cover) + layer[..., :3] * cover, np.float32)


def _fade(color: Array, vivid: float) -> Array:
    """Take the color out of the last axis (RGB), but for ``vivid`` of it."""
    gray = color.mean(-1, keepdims=True)
    return np.asarray(gray + (color - gray) * vivid, np.float32)


def _lit(row: TeethRow, light: Array, vivid: float) -> TeethRow:
    color = _fade(row.pixels[..., :3], vivid) * light
    return replace(row, pixels=np.dstack([color, row.pixels[..., 3]]).astype(np.float32))
