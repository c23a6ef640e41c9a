"""Corners of a mouth that closes over a smile: skin instead of the inside of a cheek.

Takes a photo that shows teeth, once; softens what of its open corners is left between closed lips.
"""

from __future__ import annotations

import cv2
import numpy as np

from talking_avatar.engine.portrait.geometry import Array, smoothstep
from talking_avatar.engine.portrait.grid import Grid, Pixels, Texture, warp
from talking_avatar.engine.portrait.liplines import LipLines
from talking_avatar.engine.portrait.tone import spread

_CENTER, _REACH = 1.12, (0.24, 0.20)
"""Where the dark is, aside, and how far around, in half mouth widths."""
_SHARE = 0.85
"""A little of it stays: corners of a closed mouth are shaded too."""
_WIDE = (0.22, 0.38)
"""Gaps of the photo's mouth between which its corners become dark, in half mouth widths."""


class Corners:
    """Both corners of one smile, painted shut. Immutable."""

    def __init__(self, image: Pixels, lines: LipLines) -> None:
        frame, half = lines.frame, lines.frame.half
        u = np.array([-1.7, 1.7, -1.7, 1.7], np.float32) * half
        v = np.array([-0.7, -0.7, 0.8, 0.8], np.float32) * half
        xs, ys = frame.image(u, v)
        height, width = image.shape[:2]
        x0, y0 = max(int(xs.min()), 0), max(int(ys.min()), 0)
        x1, y1 = min(int(xs.max()), width), min(int(ys.max()), height)
        part = np.ascontiguousarray(image[y0:y1, x0:x1])
        u, v = frame.local(np.stack(np.meshgrid(np.arange(x0, x1), np.arange(y0, y1)), -1))
        aside = (np.abs(u) / half - _CENTER) / _REACH[0]
        down = (v - (lines.upper(u) + lines.lower(u)) / 2) / (_REACH[1] * half)
        away = np.hypot(aside, down)
        tone = spread(part.astype(np.float32), away > 1.0, half)
        gray, skin = cv2.cvtColor(part, cv2.COLOR_RGB2GRAY), tone.mean(-1)
        dark = smoothstep(skin - gray, 0.02 * skin, 0.12 * skin)
        share = _SHARE * smoothstep(lines.gap, *_WIDE)
        cover = share * (1 - smoothstep(away, 0.55, 1.0)) * cv2.GaussianBlur(dark, (0, 0), 1.5)
        color = np.clip(tone + 0.5, 0, 255).astype(np.uint8)
        self._skin = Texture.of(color, np.round(255 * cover).astype(np.uint8), x0, y0)

    def draw(self, made: Pixels, box: Grid, place: Array, closed: float) -> Pixels:
        """Lay the skin over ``made``, RGB pixels of ``box``.

        Args:
            made: Where the mouth is composed.
            box: Its pixels.
            place: (2, nodes of the box) position in the photo.
            closed: 0 to 1.
        """
        skin = warp(self._skin, box, place)
        cover = skin[..., 3].astype(np.float32) * (closed / 255)
        return np.asarray(
            cv2.blendLinear(made, np.ascontiguousarray(skin[..., :3]), 1 - cover, cover)
        )
