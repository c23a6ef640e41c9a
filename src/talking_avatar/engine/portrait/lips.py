"""Put the lips together: the upper layer, what lies between, the lower layer.

Away from the parting of the lips the two layers are the same picture, so only a small box around
the mouth is composed; everything else is one warp of the photo.
"""

from __future__ import annotations

import cv2
import numpy as np

from talking_avatar.engine.portrait.corners import Corners
from talking_avatar.engine.portrait.face import MouthShape
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import Array, smoothstep
from talking_avatar.engine.portrait.grid import Grid, Pixels, Texture, warp
from talking_avatar.engine.portrait.interior import Interior
from talking_avatar.engine.portrait.mouth import MouthPose, MouthRig

_ASIDE = 1.26
"""The box reaches this far aside, in half mouth widths: beyond the corners at full smile."""

_SHADOW = np.array([0.50, 0.58, 0.58], np.float32)


class Lips:
    """The two cut-out lips of one photo and the mouth between them. Immutable."""

    def __init__(self, photo: FramedPhoto, rig: MouthRig, texture: Texture) -> None:
        self._rig, self._lines = rig, rig.lines
        self._interior = Interior(photo, rig.lines, texture)
        self._upper, self._lower = self._cut_out(texture)
        self._corners = Corners(photo.image, rig.lines) if rig.lines.is_open else None

    def draw(self, frame: Pixels, pose: MouthPose) -> None:
        """Compose the mouth into ``frame``, RGB (H, W, 3), which holds the warped photo."""
        own = self._own_share(pose.shape)
        box = self._box(pose, frame.shape[1], frame.shape[0])
        if own >= 1 or box is None:
            return
        made = self._compose(box, pose)
        rows, columns = box.slices
        target = frame[rows, columns]
        made = made[: target.shape[0], : target.shape[1]]
        target[:] = cv2.addWeighted(target, own, made, 1 - own, 0) if own > 0 else made

    def gap(self, pose: MouthPose, width: int, height: int) -> Array:
        """Return how much of the inner mouth each pixel shows, float32 (height, width), 0 to 1."""
        whole = np.zeros((height, width), np.float32)
        box = self._box(pose, width, height)
        if box is not None:
            rows, columns = box.slices
            target = whole[rows, columns]
            gap = self._layers(box, pose)[-1]
            target[:] = gap[: target.shape[0], : target.shape[1]]
        return whole

    def _own_share(self, shape: MouthShape) -> float:
        """1 where nothing moves in a photo whose mouth is open: its own pixels are then best."""
        if not self._lines.is_open:
            return 0.0
        moves = (shape.close, shape.open, shape.jaw, shape.pucker, shape.teeth_on_lip)
        amount = sum(moves) + abs(shape.spread) + abs(shape.smile)
        return 1 - float(smoothstep(amount, 0.0, 0.15))

    def _box(self, pose: MouthPose, width: int, height: int) -> Grid | None:
        """Find the part of the mouth's grid where the layers differ."""
        lines, grid, motion = self._lines, self._rig.grid, pose.motion
        half = lines.frame.half
        margin = (0.14 + 0.2 * abs(motion.smile) + 0.05 * motion.pucker) * half
        high = float(lines.upper.values.min()) - motion.lift - margin
        low = float(lines.lower.values.max()) + max(motion.drop, 0) + margin
        aside = _ASIDE * half
        u = np.array([-aside, aside, -aside, aside], np.float32)
        v = np.array([high, high, low, low], np.float32)
        corner_x, corner_y = lines.frame.image(u, v)
        shift = self._shift(pose.place)
        corner_x, corner_y = corner_x + shift[0], corner_y + shift[1]
        x0, x1 = max(corner_x.min(), grid.x0), min(corner_x.max(), grid.x0 + grid.width, width)
        y0, y1 = max(corner_y.min(), grid.y0), min(corner_y.max(), grid.y0 + grid.height, height)
        return Grid.over(x0, y0, x1, y1, grid.step) if x1 > x0 and y1 > y0 else None

    def _shift(self, place: Array) -> Array:
        """How far the head has carried the middle of the mouth."""
        grid = self._rig.grid
        x, y = self._lines.frame.origin
        column = int(np.clip((x - grid.x0) / grid.step + 1, 0, grid.columns))
        row = int(np.clip((y - grid.y0) / grid.step + 1, 0, grid.rows))
        return np.asarray(self._rig.nodes[:, row, column] - place[:, row, column])

    def _layers(self, box: Grid, pose: MouthPose) -> tuple[Pixels, Pixels, Array, Array, Array]:
        """Warp both lips: their pixels, their weights, and that of the gap between them."""
        window = (slice(None), *self._rig.grid.window(box))
        high = warp(self._upper, box, pose.upper[window])
        low = warp(self._lower, box, pose.lower[window])
        low_weight = low[..., 3].astype(np.float32) / 255
        high_weight = high[..., 3].astype(np.float32) / 255
        gap = (1 - low_weight) * (1 - high_weight)
        if pose.motion.under:
            u, _ = self._lines.frame.local(np.moveaxis(pose.upper[window], 0, -1))
            middle = 1 - smoothstep(np.abs(u) / self._lines.frame.half, 0.70, 0.95)
            low_weight = low_weight * (1 - box.enlarge(pose.motion.under * middle) * high_weight)
        return high, low, 1 - low_weight - gap, low_weight, gap

    def _compose(self, box: Grid, pose: MouthPose) -> Pixels:
        high, low, high_weight, low_weight, gap = self._layers(box, pose)
        mixed = cv2.blendLinear(high, low, high_weight, low_weight)
        made: Pixels = np.array(mixed[..., :3], np.uint8)
        if self._corners is not None and pose.motion.corners:
            window = self._rig.grid.window(box)
            made = self._corners.draw(made, box, pose.upper[:, *window], pose.motion.corners)
        x, y, width, height = cv2.boundingRect((gap > 0.004).astype(np.uint8))
        if not width:
            return made
        part = (slice(y, y + height), slice(x, x + width))
        window = self._rig.grid.window(box)
        xs, ys = (np.ascontiguousarray(box.enlarge(axis[window])[part]) for axis in pose.place)
        u, v = self._lines.frame.local(np.stack([xs, ys], -1))
        inner = self._interior.render(u, v, pose.motion, pose.shape)
        weight = gap[part][..., None]
        made[part] = np.clip(made[part] * (1 - weight) + inner * weight + 0.5, 0, 255)
        return made

    def _cut_out(self, texture: Texture) -> tuple[Texture, Texture]:
        """Cut the lips out of the photo, each continued past its edge in its own color."""
        lines, frame = self._lines, self._lines.frame
        half = frame.half
        u = np.array([-1.6, 1.6, -1.6, 1.6], np.float32) * half
        v = np.array([-1.0, -1.0, 1.3, 1.3], np.float32) * half
        xs, ys = frame.image(u, v)
        x0, y0 = max(int(xs.min()), 0), max(int(ys.min()), 0)
        width, height = int(xs.max()) - x0, int(ys.max()) - y0
        columns = x0 + np.arange(2 * width - 1, dtype=np.float32) / 2
        rows = y0 + np.arange(2 * height - 1, dtype=np.float32) / 2
        u, v = frame.local(np.stack(np.meshgrid(columns, rows), -1))
        upper, lower = lines.upper(u), lines.lower(u)
        outside = smoothstep(np.abs(u) / half, 1.00, 1.12)
        if lines.is_open:
            keep_up, keep_low, edge_up, edge_low = upper - 1.0, lower + 1.0, upper, lower
        else:  # the upper lip goes on a little under the lower one: closed, they show the photo
            keep_up, keep_low, edge_up, edge_low = upper + 0.6, lower - 0.5, upper + 1.8, lower
        cover_up = np.maximum(1 - smoothstep(v, edge_up - 0.9, edge_up + 0.9), outside)
        cover_low = smoothstep(v, edge_low - 0.9, edge_low + 0.9)
        layers = []
        for bounded, edge, cover in (
            (np.minimum(v, keep_up), edge_up, cover_up),
            (np.maximum(v, keep_low), edge_low, cover_low),
        ):
            source = np.stack(frame.image(u, bounded + (v - bounded) * outside))
            map_x, map_y = texture.positions(source)
            cut = cv2.remap(
                texture.pixels, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
            )
            if lines.is_open:
                shadow = _contact(bounded - edge, half) * (
                    1 - smoothstep(np.abs(u) / half, 0.80, 1.02)
                )
                cut[..., :3] = (cut[..., :3] * (1 - shadow[..., None] * _SHADOW)).astype(np.uint8)
            cut[..., 3] = np.round(cover * 255)
            layers.append(Texture(np.asarray(cut), x0, y0))
        return layers[0], layers[1]


def _contact(distance: Array, half: float) -> Array:
    """Shadow along the edge of a lip on which no other lip lay in the photo."""
    return np.exp(-((distance / (0.04 * half)) ** 2)).astype(np.float32)
