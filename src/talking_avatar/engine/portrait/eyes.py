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
from talking_avatar.engine.portrait.iris import Iris, complete_eyeball, find_iris

_LEFT_UPPER = (33, 246, 161, 160, 159, 158, 157, 173, 133)
_LEFT_LOWER = (33, 7, 163, 144, 145, 153, 154, 155, 133)
_LEFT_BROW = (46, 53, 52, 65, 55)
_RIGHT_UPPER = (362, 398, 384, 385, 386, 387, 388, 466, 263)
_RIGHT_LOWER = (362, 382, 381, 380, 374, 373, 390, 249, 263)
_RIGHT_BROW = (285, 295, 282, 283, 276)
_GAZE = (0.26, 0.13)
"""How far the iris moves at 1, across and down, in half eye widths: clear of the corners."""
_LASHES = 0.06
"""Height of the lash line below the mesh's lid, in half eye widths; it moves as one."""


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
        _, brow_v = self.frame.local(points[list(brow)])
        self._brow = min(float(brow_v.mean()), float(self._upper.values.min()) - 0.25 * half)
        self._lid_corners = self._corners(1.45, self._brow)
        self._ball_corners = self._corners(1.1, float(self._upper.values.min()) - 0.1 * half)
        self._step = 4 if half >= 28 else 2
        self._photo = texture
        self._iris, self._eyeball, self._skin = self._paint(photo.image)

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
        at = (box.nodes() - grid.nodes()[:, :1, :1]) / grid.step
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
        distance = np.hypot(u - iris.u - across, v - iris.v - down)
        rigid = 1 - smoothstep(distance, 1.1 * iris.radius, 1.1 * iris.radius + 0.75 * half)
        source = np.stack(self.frame.image(u - across * rigid, v - down * rigid))
        ball = warp(self._eyeball, box, source)
        inside = np.minimum(v - self._upper(u), self._lower(u) - v)
        # The painted rim of the eyeball comes in with the first pixel of motion, not at once.
        begun = float(smoothstep(np.hypot(across, down), 0.0, 1.0))
        cover = np.clip(box.enlarge(inside) * (begun / 1.6), 0, 1) * begun
        return _blend(made, ball, cover)

    def _close(self, made: Pixels, box: Grid, u: Array, v: Array, blink: float) -> Pixels:
        half = self.frame.half
        margin = self._upper(u) + _LASHES * half
        drop = (self._lower(u) + 0.02 * half - margin).clip(0) * float(np.clip(blink, 0, 1))
        above = margin + drop - v
        top = drop + 0.70 * (margin - self._brow)
        source = np.stack(self.frame.image(u, margin - _unroll(above, drop, top, 0.08 * half)))
        lid = warp(self._photo, box, source)
        skin = warp(self._skin, box, source)
        distance = box.enlarge(above)
        beside = 1 - smoothstep(np.abs(box.enlarge(u)), 1.0 * half, 1.35 * half)
        cover = np.clip(distance / 1.4 + 0.5, 0, 1) * beside
        depth = np.clip(box.enlarge(drop) / (0.35 * half), 0, 1)
        lashes = 0.36 * np.exp(-(((distance - 0.035 * half) / (0.05 * half)) ** 2))
        round_off = 0.10 * np.exp(-(((distance - 0.2 * half) / (0.25 * half)) ** 2))
        shade = 1 - depth * (lashes + round_off)
        bare = 0.88 * depth * smoothstep(distance, 0.02 * half, 0.09 * half)
        color = cv2.blendLinear(lid, skin, 1 - bare, bare)
        return _blend(made, np.asarray(color), cover, 1 - cover * (1 - shade))

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
        low = float(self._lower.values.max()) + 0.2 * half
        u = np.array([-aside, aside, -aside, aside], np.float32) * half
        return np.stack(self.frame.image(u, np.array([high, high, low, low], np.float32)))

    def _box(self, corners: Array, grid: Grid, place: Array, frame: Pixels) -> Grid | None:
        xs, ys = corners
        x, y = self.frame.origin
        column = int(np.clip((x - grid.x0) / grid.step + 1, 0, grid.columns))
        row = int(np.clip((y - grid.y0) / grid.step + 1, 0, grid.rows))
        shift = grid.nodes()[:, row, column] - place[:, row, column]
        height, width = frame.shape[:2]
        x0, x1 = max(xs.min() + shift[0], 0), min(xs.max() + shift[0], width - self._step)
        y0, y1 = max(ys.min() + shift[1], 0), min(ys.max() + shift[1], height - self._step)
        return Grid.over(x0, y0, x1, y1, self._step) if x1 > x0 and y1 > y0 else None

    def _paint(self, image: Pixels) -> tuple[Iris, Texture, Texture]:
        """Find the iris; paint the whole eyeball, and the lid's skin without lashes."""
        xs, ys = self._lid_corners
        height, width = image.shape[:2]
        margin = 0.5 * self.frame.half  # a box on the moved head shows a little more
        x0, y0 = max(int(xs.min() - margin), 0), max(int(ys.min() - margin), 0)
        x1, y1 = min(int(xs.max() + margin), width), min(int(ys.max() + margin), height)
        part = np.ascontiguousarray(image[y0:y1, x0:x1])
        columns, rows = np.meshgrid(np.arange(x0, x1), np.arange(y0, y1))
        u, v = self.frame.local(np.stack([columns, rows], -1))
        inside = np.minimum(v - self._upper(u), self._lower(u) - v)
        iris = find_iris(part, u, v, inside, self.frame.half)
        ball = complete_eyeball(part, u, v, inside, iris)
        above = self._upper(u) - v
        tone = _lid_tone(part, u, above, v - self._lower(u), self.frame.half)
        skin = _without_lashes(part, above, tone, self.frame.half)
        return iris, Texture.of(ball, x0=x0, y0=y0), Texture.of(skin, x0=x0, y0=y0)


def _unroll(above: Array, drop: Array, top: Array, rigid: float) -> Array:
    """How far above the open lid's margin the skin lies that the closing lid shows.

    Args:
        above: Height above the moving margin.
        drop: How far the margin has come down.
        top: Height above the moving margin from which nothing moves.
        rigid: Height of the strip with the lashes, which moves as one.
    """
    room = np.maximum(top - rigid, 1e-3)
    t = np.clip((above - rigid) / room, 0, 1)
    # As much softer than a straight line as leaves the skin unfolded.
    soft = np.clip(2 * (0.95 * room / np.maximum(drop, 1e-3) - 1), 0, 0.5)
    return np.asarray(above - drop * ((1 - soft) * t + soft * t * t * (3 - 2 * t)), np.float32)


def _without_lashes(image: Pixels, above: Array, tone: Array, half: float) -> Pixels:
    """Paint out lashes that stand up before the lid: stretched, they would smear over it."""
    size = max(3, int(0.22 * half)) | 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, max(3, size // 3) | 1))
    clean = cv2.morphologyEx(image, cv2.MORPH_CLOSE, kernel)
    clean = cv2.GaussianBlur(clean, (0, 0), max(0.06 * half, 0.8)).astype(np.float32)
    # The shadow over an open eye stays behind when its lid closes.
    clean = clean + np.float32(0.6) * (tone - clean)
    near = smoothstep(above, -0.05 * half, 0.02 * half) * (
        1 - smoothstep(above, 0.35 * half, 0.60 * half)
    )
    return np.asarray(image + (clean - image) * near[..., None] + 0.5).astype(np.uint8)


def _lid_tone(image: Pixels, u: Array, above: Array, below: Array, half: float) -> Array:
    """Guess the color of a closed lid, RGB, from the skin above and below the eye."""
    middle = np.abs(u) < 0.8 * half
    tones = []
    for distance, low, high in ((above, 0.10, 0.55), (below, 0.25, 0.65)):
        skin = image[middle & (distance > low * half) & (distance < high * half)]
        if len(skin):
            bright = skin.sum(1, dtype=np.int32)
            tones.append(skin[bright >= np.percentile(bright, 60)].mean(0))
    return np.asarray(0.94 * np.mean(tones or [(128.0, 100.0, 90.0)], axis=0), np.float32)


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
