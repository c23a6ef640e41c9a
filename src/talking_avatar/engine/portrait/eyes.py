"""Blink and look around.

Takes the photo and its landmarks once. A blink draws the skin above the eye down over it, lashes
first; a glance moves the iris on an eyeball that is completed behind the lids. Both are continuous:
at 0 they leave the photo's own pixels.
"""

from __future__ import annotations

import cv2
import numpy as np

from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import Array, Curve, LocalFrame, smoothstep
from talking_avatar.engine.portrait.grid import Grid, Pixels, Texture, warp
from talking_avatar.engine.portrait.iris import Iris, find_iris
from talking_avatar.engine.portrait.lids import EyeView, shut

_LEFT_UPPER = (33, 246, 161, 160, 159, 158, 157, 173, 133)
_LEFT_LOWER = (33, 7, 163, 144, 145, 153, 154, 155, 133)
_LEFT_BROW = (46, 53, 52, 65, 55)
_RIGHT_UPPER = (362, 398, 384, 385, 386, 387, 388, 466, 263)
_RIGHT_LOWER = (362, 382, 381, 380, 374, 373, 390, 249, 263)
_RIGHT_BROW = (285, 295, 282, 283, 276)
_GAZE = (0.17, 0.08)
"""How far the iris moves at 1, across and down, in half eye widths: clear of the corners."""


_MEET = 0.05
"""Closed lids meet this far below the mesh's lower lid, in half eye widths: on its lashes."""


def eyes_of(photo: FramedPhoto, texture: Texture) -> list[Eye]:
    """Make both eyes of a photo, left to right as seen in the picture."""
    return [
        Eye(photo, texture, _LEFT_UPPER, _LEFT_LOWER, _LEFT_BROW, is_left=True),
        Eye(photo, texture, _RIGHT_UPPER, _RIGHT_LOWER, _RIGHT_BROW, is_left=False),
    ]


class Eye:
    """One eye of a photo. Immutable."""

    def __init__(
        self,
        photo: FramedPhoto,
        texture: Texture,
        upper: tuple[int, ...],
        lower: tuple[int, ...],
        brow: tuple[int, ...],
        *,
        is_left: bool,
    ) -> None:
        points = photo.landmarks[:, :2]
        self.is_left = is_left
        self.frame = LocalFrame.between(points[upper[0]], points[upper[-1]])
        half = self.frame.half
        self._upper, self._lower = self._lids(points[list(upper)], points[list(lower)])
        self._brow = self._brow_line(points[list(brow)])
        highest = float(self._upper.values.min())
        self._lid_corners = self._corners(1.45, highest - 0.55 * half)
        self._ball_corners = self._corners(1.1, highest - 0.36 * half)
        self._step = 4 if half >= 28 else 2
        self._photo = texture
        self._iris, self._skin, self._line = self._paint(photo.image)

    def draw(self, frame: Pixels, state: FaceState, grid: Grid, place: Array) -> None:
        """Draw the eye into ``frame``, which holds the warped photo.

        Args:
            frame: RGB (H, W, 3), written in place.
            state: The face's.
            grid: The grid of ``place``.
            place: (2, rows, columns) position in the photo of each node.
        """
        blink = state.blink_left if self.is_left else state.blink_right
        if not blink and not state.gaze_x and not state.gaze_y:
            return
        box = self._box(self._lid_corners if blink else self._ball_corners, grid, place, frame)
        if box is None:
            return
        at = (box.nodes() - grid.first[:, None, None]) / grid.step
        source = np.stack([cv2.remap(part, at[0], at[1], cv2.INTER_LINEAR) for part in place])
        u, v = self.frame.local(np.moveaxis(source, 0, -1))
        rows, columns = box.slices
        made = np.ascontiguousarray(frame[rows, columns])
        if state.gaze_x or state.gaze_y:
            made = self._look(made, box, u, v, state)
        if blink:
            made = self._close(made, box, u, v, blink)
        frame[rows, columns] = made

    def _look(self, made: Pixels, box: Grid, u: Array, v: Array, state: FaceState) -> Pixels:
        iris, half = self._iris, self.frame.half
        across = float(np.clip(state.gaze_x, -1, 1)) * _GAZE[0] * half
        down = float(np.clip(state.gaze_y, -1, 1)) * _GAZE[1] * half
        aside = np.abs(u - iris.u - across)
        moves = 1 - smoothstep(aside, iris.radius, iris.radius + 0.55 * half)
        moves = moves * (1 - smoothstep(np.abs(u), 0.78 * half, 1.05 * half))
        # Along itself a lid may slide; across, the upper one follows the iris, the lower stays.
        above, below = self._upper(u) - v, v - self._lower(u)
        moves = moves * (1 - smoothstep(above, 0.06 * half, 0.34 * half))
        slides = moves * (1 - smoothstep(below, 0.04 * half, 0.30 * half))
        sinks = moves * (1 - smoothstep(below, -0.20 * half, 0.08 * half))
        ball = warp(
            self._photo, box, np.stack(self.frame.image(u - across * slides, v - down * sinks))
        )
        begun = float(smoothstep(np.hypot(across, down), 0.0, 0.5))
        cover = np.clip(box.enlarge(slides) * 20, 0, 1) * begun
        return _blend(made, ball, cover)

    def _close(self, made: Pixels, box: Grid, u: Array, v: Array, blink: float) -> Pixels:
        half, closed = self.frame.half, float(np.clip(blink, 0, 1))
        margin = self._upper(u)
        drop = (self._lower(u) + _MEET * half - margin).clip(0) * closed
        above = box.enlarge(margin + drop - v)
        place = np.stack(self.frame.image(u, v))
        lid = warp(self._skin, box, place)
        begun = float(smoothstep(closed, 0.0, 0.15))
        beside = 1 - smoothstep(np.abs(box.enlarge(u)), 1.25 * half, 1.42 * half)
        cover = np.clip(above / 1.4 + 0.5, 0, 1) * beside * begun
        return _blend(made, lid, cover, 1 - begun * self._darkness(box, u, above, closed))

    def _darkness(self, box: Grid, u: Array, above: Array, closed: float) -> Array:
        """Darkness on and below the lid: lashes swing down with it, light falls from above."""
        half = self.frame.half
        swing = 1.0 - 1.7 * float(smoothstep(closed, 0.1, 0.95))
        swing = swing if abs(swing) > 0.12 else float(np.copysign(0.12, swing))
        height = np.clip(above / swing, -half, 0.5 * half)
        margin = box.enlarge(self._upper(u))
        x, y = self.frame.image(box.enlarge(u), margin - 0.02 * half - np.maximum(height, 0))
        at = self._skin.positions(np.stack([x, y]))
        lashes = cv2.remap(self._skin.pixels, at[0], at[1], cv2.INTER_LINEAR)[..., 3]
        across = np.abs(box.enlarge(u)) / half
        reach = 1 - smoothstep(across, 0.80, 1.04)
        hair = (1 - lashes.astype(np.float32) / 255) * (height > 0) * reach
        thin = (0.020 + 0.016 * reach) * half
        line = np.exp(-((above / thin) ** 2)) * (1 - self._line) * reach
        ball = 0.06 * np.exp(-(((above - 0.10 * half) / (0.13 * half)) ** 2)) * (above > 0) * reach
        return np.asarray(np.maximum(np.maximum(hair, line), ball), np.float32)

    def _lids(self, upper: Array, lower: Array) -> tuple[Curve, Curve]:
        """Fit both lids: smooth between the corners, meeting at and beyond them."""
        half = self.frame.half
        knots = np.linspace(-2 * half, 2 * half, 257, dtype=np.float32)
        x = knots / half
        lids = []
        for points in (upper, lower):
            u, v = self.frame.local(points)
            arch = np.clip(1 - (u / half) ** 2, 1e-3, None)
            basis = np.stack([arch, arch * u / half, arch**2], -1)
            shape = np.linalg.lstsq(basis[1:-1], v[1:-1], rcond=None)[0]
            arch = np.clip(1 - x**2, 0, None)
            lids.append(np.stack([arch, arch * x, arch**2], -1) @ shape)
        high, low = lids
        return Curve.over(knots, high), Curve.over(knots, np.maximum(low, high))

    def _corners(self, aside: float, high: float) -> Array:
        """Corners of a box around the eye, (2, 4), down to below the lower lid."""
        half = self.frame.half
        low = float(self._lower.values.max()) + 0.32 * half
        u = np.array([-aside, aside, -aside, aside], np.float32) * half
        return np.stack(self.frame.image(u, np.array([high, high, low, low], np.float32)))

    def _box(self, corners: Array, grid: Grid, place: Array, frame: Pixels) -> Grid | None:
        xs, ys = corners
        x, y = self.frame.origin
        column = int(np.clip((x - grid.x0) / grid.step + 1, 0, grid.columns))
        row = int(np.clip((y - grid.y0) / grid.step + 1, 0, grid.rows))
        node = grid.first + grid.step * np.array([column, row], np.float32)
        shift = node - place[:, row, column]
        height, width = frame.shape[:2]
        x0, x1 = max(xs.min() + shift[0], 0), min(xs.max() + shift[0], width - self._step)
        y0, y1 = max(ys.min() + shift[1], 0), min(ys.max() + shift[1], height - self._step)
        return Grid.over(x0, y0, x1, y1, self._step) if x1 > x0 and y1 > y0 else None

    def _paint(self, image: Pixels) -> tuple[Iris, Texture, float]:
        """Find the iris; paint the eye shut, with its lashes as opacity."""
        half = self.frame.half
        xs, ys = self._lid_corners
        height, width = image.shape[:2]
        margin = 0.6 * half  # a box on the moved head shows a little more
        x0, y0 = max(int(xs.min() - margin), 0), max(int(ys.min() - margin), 0)
        x1, y1 = min(int(xs.max() + margin), width), min(int(ys.max() + margin), height)
        part = np.ascontiguousarray(image[y0:y1, x0:x1])
        columns, rows = np.meshgrid(np.arange(x0, x1), np.arange(y0, y1))
        u, v = self.frame.local(np.stack([columns, rows], -1))
        upper, lower = self._upper(u), self._lower(u)
        iris = find_iris(part, u, v, np.minimum(v - upper, lower - v), half)
        closed = shut(EyeView(part, u, upper - v, v - lower, upper - self._brow(u), half))
        skin = Texture.of(closed.skin, closed.lashes, x0=x0, y0=y0)
        return iris, skin, closed.line

    def _brow_line(self, points: Array) -> Curve:
        """Return the lower edge of the brow, at least a little above the lid."""
        half = self.frame.half
        knots = np.linspace(-2 * half, 2 * half, 65, dtype=np.float32)
        u, v = self.frame.local(points)
        order = np.argsort(u)
        edge = np.interp(knots, u[order], v[order])
        return Curve.over(knots, np.minimum(edge, self._upper(knots[None])[0] - 0.3 * half))


def _blend(made: Pixels, layer: Pixels, cover: Array, shade: Array | None = None) -> Pixels:
    """Lay RGBA ``layer`` over RGB ``made`` and darken the result."""
    rows, columns = made.shape[:2]
    color = cv2.cvtColor(layer, cv2.COLOR_RGBA2RGB)[:rows, :columns]
    cover = cover[:rows, :columns]
    mixed = cv2.blendLinear(made, color, 1 - cover, cover)
    if shade is not None:
        shade = shade[:rows, :columns]
        mixed = cv2.multiply(mixed, cv2.merge([shade, shade, shade]), dtype=cv2.CV_8U)
    return np.asarray(mixed, np.uint8)
