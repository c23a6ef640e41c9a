"""Paint an eye shut: the skin that an open eye keeps behind its crease.

Takes the picture around one eye, gives the same picture with the eye closed and without lashes,
and the lashes alone. Called once a photo; moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from talking_avatar.engine.portrait.geometry import Array, smoothstep
from talking_avatar.engine.portrait.grid import Pixels
from talking_avatar.engine.portrait.tone import Mask, spread

_ODD = 0.085
"""What differs from the skin around by this share of its brightness is a hair, a rim or a glint."""


@dataclass(frozen=True, slots=True, eq=False)
class EyeView:
    """The picture around an eye, in the eye's own frame, in pixels.

    Attributes:
        image: RGB (h, w, 3).
        u: (h, w) across.
        above: (h, w) height above the upper lid's margin.
        below: (h, w) depth below the lower lid's margin.
        brow: (h, w) height of the brow's lower edge above the upper lid's margin.
        half: Half the eye's width.
    """

    image: Pixels
    u: Array
    above: Array
    below: Array
    brow: Array
    half: float


@dataclass(frozen=True, slots=True, eq=False)
class ShutEye:
    """A closed eye.

    Attributes:
        skin: RGB (h, w, 3), without lashes.
        lashes: uint8 (h, w): share of light that the lashes before the open lid let through.
        line: The same of the lid's margin, 0 to 1.
    """

    skin: Pixels
    lashes: Pixels
    line: float


def shut(view: EyeView) -> ShutEye:
    """Close an eye.

    Skin tone is spread over the hole from all sides, so that it meets the skin around in hue and
    in light; pores and fine lines come from the skin below the eye.
    """
    half = view.half
    image = view.image.astype(np.float32)
    gray = np.asarray(cv2.cvtColor(view.image, cv2.COLOR_RGB2GRAY), np.uint8)
    dark, hairs, bright = _odd(gray, half)
    hole = _hole(view)
    around = max(1, round(0.10 * half))
    unsure = (
        cv2.dilate((hole > 0.05).astype(np.uint8), np.ones((2 * around + 1,) * 2, np.uint8)) > 0
    )
    unknown = unsure | dark | bright
    tone = spread(image, ~unknown, half)
    below_lashes = 1 - smoothstep(
        np.maximum(view.above / view.brow, view.above / (0.50 * half)), 0.40, 0.70
    )
    hair = cv2.GaussianBlur(hairs.astype(np.float32), (0, 0), max(0.05 * half, 0.7))
    near = (view.below < 0) | (view.above > 0)
    hair = np.clip(3 * hair, 0, 1) * below_lashes * near * _beside(view)
    cover = np.maximum(hole, hair * (view.above > -0.02 * half))[..., None]
    made = tone + _grain(view, image)[..., None]
    skin = np.clip(image + (made - image) * cover + 0.5, 0, 255).astype(np.uint8)
    through = np.clip((gray + 1.0) / (cv2.cvtColor(skin, cv2.COLOR_RGB2GRAY) + 1.0), 0.18, 1.0)
    margin = (np.abs(view.above - 0.02 * half) < 0.05 * half) & (np.abs(view.u) < 0.8 * half)
    line = float(np.median(through[margin])) if margin.any() else 0.6
    fade = below_lashes * smoothstep(view.above, -0.02 * half, 0.03 * half)
    # Where the mesh's lid lies too low an iris passes for lashes: they are no darker than this.
    hairs_dark = np.minimum(1 - through, 0.5) * fade * _beside(view)
    lashes = 1 - cv2.GaussianBlur(hairs_dark, (0, 0), sigmaX=max(0.04 * half, 0.6), sigmaY=0.6)
    return ShutEye(skin, np.round(lashes * 255).astype(np.uint8), float(np.clip(line, 0.30, 0.62)))


def _beside(view: EyeView) -> Array:
    return 1 - smoothstep(np.abs(view.u), 1.1 * view.half, 1.4 * view.half)


def _odd(gray: Pixels, half: float) -> tuple[Mask, Mask, Mask]:
    """Find what is thin: dark (wrinkles too), very dark (lashes, rims), bright (glints)."""
    size = max(3, int(0.34 * half)) | 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size))
    limit = _ODD * float(np.percentile(gray, 70))
    darker = cv2.morphologyEx(gray, cv2.MORPH_BLACKHAT, kernel)
    bright = cv2.morphologyEx(gray, cv2.MORPH_TOPHAT, kernel) > 2 * limit
    return darker > limit, darker > 1.2 * limit, bright


def _hole(view: EyeView) -> Array:
    """1 on the eye and the roots of its lashes, falling to 0 in the skin around."""
    half = view.half
    end = 1 - smoothstep(np.abs(view.u), 0.98 * half, 1.22 * half)
    above = 1 - smoothstep(view.above, 0.04 * half, 0.20 * half)
    below = 1 - smoothstep(view.below, 0.04 * half, 0.11 * half)
    return np.asarray(above * below * end, np.float32)


def _grain(view: EyeView, image: Array) -> Array:
    """Mirror the fine detail of the skin below the eye into the hole, (h, w) of brightness."""
    half = view.half
    gray = image.mean(-1)
    fine = gray - cv2.GaussianBlur(gray, (0, 0), max(0.16 * half, 1.0))
    skin = (view.below > 0.3 * half) & (view.below < 0.9 * half) & (np.abs(view.u) < half)
    limit = 2.5 * float(np.median(np.abs(fine[skin]))) if skin.any() else 0.0
    fine = np.clip(fine, -limit, limit).astype(np.float32)
    columns, rows = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in view.u.shape[::-1]))
    # One pixel down the picture is nearly one down the eye: eyes are level to a few degrees.
    rows = rows + 2 * np.maximum(-view.below, 0) + 0.30 * half
    mirrored = cv2.remap(fine, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(mirrored, np.float32)
