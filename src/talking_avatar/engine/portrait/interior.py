"""What is seen between the lips: the photo's own teeth or drawn ones, tongue, dark.

Takes the photo once, then for each frame the part of the mouth's own plane that shows; gives its
colors. The upper teeth stand still with the head, the lower teeth and the tongue go with the jaw.
"""

from __future__ import annotations

import cv2
import numpy as np

from talking_avatar.engine.portrait.face import MouthShape
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import Array, LocalFrame, smoothstep
from talking_avatar.engine.portrait.grid import Texture
from talking_avatar.engine.portrait.liplines import LipLines
from talking_avatar.engine.portrait.mouth import MouthMotion
from talking_avatar.engine.portrait.teeth import lower_row, upper_row

_CHEEKS = (50, 280, 205, 425, 117, 346)
_EYES = ((33, 159, 133, 145), (362, 386, 263, 374))
_DEEP = np.array([0.17, 0.065, 0.06], np.float32)
_SOFT = np.array([0.34, 0.14, 0.13], np.float32)
_TONGUE = np.array([0.70, 0.36, 0.36], np.float32)


def tooth_light(photo: FramedPhoto) -> Array:
    """Estimate how white enamel would look in the photo's light, RGB 0 to 255.

    The whites of the eyes reflect about as much as teeth and stand in the same light; the skin
    says how bright and how warm that light is when the eyes are hidden.
    """
    image = cv2.GaussianBlur(photo.image, (0, 0), 1.5).astype(np.float32)
    height, width = image.shape[:2]

    def pick(x: float, y: float) -> Array:
        column, row = int(np.clip(x, 0, width - 1)), int(np.clip(y, 0, height - 1))
        return np.asarray(image[row, column])

    points = photo.landmarks[:, :2]
    skin = np.median([pick(*points[i]) for i in _CHEEKS], 0)
    level = 0.92 * float(skin.max()) + 12
    if photo.eyes_visible:
        whites = []
        for left, top, right, bottom in _EYES:
            middle = (points[top] + points[bottom]) / 2
            whites += [pick(*(points[end] * 0.45 + middle * 0.55)) for end in (left, right)]
        level = max(level * 0.85, 0.95 * float(np.max(whites)))
    tint = skin / skin.max()
    tint = 1 - 0.22 * (1 - tint)
    return np.asarray(np.clip(level, 70, 228) * tint / tint.max(), np.float32)


class Interior:
    """The inner mouth of one photo. Immutable."""

    def __init__(self, photo: FramedPhoto, lines: LipLines, texture: Texture) -> None:
        self._lines, self._frame = lines, lines.frame
        self._photo = texture
        self._light = tooth_light(photo)
        self._upper, self._lower = upper_row(), lower_row()
        center = np.zeros(1, np.float32)
        self._parting = float(lines.at(lines.parting, center)[0])

    def render(self, u: Array, v: Array, motion: MouthMotion, shape: MouthShape) -> Array:
        """Color a part of the mouth's plane.

        Args:
            u, v: (h, w) in pixels of the mouth's frame.
            motion: The lips'.
            shape: Where the tongue is.

        Returns:
            float32 (h, w, 3), 0 to 255.
        """
        half = self._frame.half
        x, depth = u / half, (v - self._parting) / half
        drop, lift = motion.drop / half, motion.lift / half
        jaw = 0.85 * drop + 0.10 * motion.jaw / half
        light = self._light
        deep = np.clip(1 - (x / 1.0) ** 2 - ((depth - 0.30 * drop) / (0.25 + drop)) ** 2, 0, 1)
        color = _SOFT + (_DEEP - _SOFT) * smoothstep(deep, 0.0, 0.7)[..., None]
        color = self._tongue(color, x, depth, jaw, shape.tongue)
        bite = depth - (0.02 + jaw - 0.10 * max(motion.spread, 0.0) + 0.10 * motion.tuck)
        lower = self._lower.sample(x, bite) * np.float32([0.78, 0.76, 0.74, 1])
        lower[..., 3] *= 1 - smoothstep(np.abs(x), 0.45, 0.80)
        color = _over(color, lower)
        color = _over(color, self._upper.sample(x, depth - 0.05 - 0.05 * motion.tuck))
        shade = self._shade(u, depth, lift, motion)[..., None]
        color = color * light * shade
        if self._lines.is_open:  # the photo has shaded its own teeth already
            color = self._own_teeth(color, u, v, 0.6 + 0.4 * shade)
        return color

    def _tongue(self, color: Array, x: Array, depth: Array, jaw: float, raised: float) -> Array:
        top = 0.17 + 0.42 * jaw - raised * (0.14 + 0.30 * jaw)
        width = 0.66 - 0.14 * raised
        dome = 1 - (x / width) ** 2 - ((depth - top - 0.12) / 0.40) ** 2
        cover = smoothstep(dome, 0.0, 0.55)[..., None]
        tone = 0.50 + 0.42 * smoothstep(dome, 0.1, 0.9) + 0.12 * raised
        tone = tone * (1 - 0.10 * np.exp(-((x / 0.05) ** 2)))
        return np.asarray(color * (1 - cover) + _TONGUE * tone[..., None] * cover, np.float32)

    def _own_teeth(self, color: Array, u: Array, v: Array, shade: Array) -> Array:
        lines = self._lines
        upper, lower = lines.at(lines.upper, u), lines.at(lines.lower, u)
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

    def _shade(self, u: Array, depth: Array, lift: float, motion: MouthMotion) -> Array:
        """Shadow of the upper lip, and the dark of the corners."""
        x = u / self._frame.half
        narrow = 1 + 0.08 * motion.spread - 0.34 * motion.pucker
        lip = -lift * np.clip(1 - x**2, 0, 1)
        under = 0.58 + 0.42 * smoothstep(depth - lip, -0.03, 0.17)
        aside = 1 - 0.62 * smoothstep(np.abs(x) / narrow, 0.45, 1.02)
        return np.asarray(under * aside * (1 - 0.25 * motion.pucker), np.float32)


def _over(color: Array, layer: Array) -> Array:
    cover = layer[..., 3:]
    return np.asarray(color * (1 - cover) + layer[..., :3] * cover, np.float32)


def plane_of(frame: LocalFrame, xs: Array, ys: Array) -> tuple[Array, Array]:
    """Turn image positions into the mouth's plane."""
    return frame.local(np.stack([xs, ys], -1))
