"""How the head, the brows and the shoulders of one photo move.

Takes landmarks and the person's mask, gives for any `FaceState` how far each node of a grid over
the frame is displaced. Away from the person that is exactly zero: the background stands still.
"""

from __future__ import annotations

import cv2
import numpy as np

from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import (
    CHIN,
    FOREHEAD,
    LEFT_EAR,
    OVAL,
    RIGHT_EAR,
    Array,
    LocalFrame,
    bump,
    smoothstep,
    thin_plate,
)
from talking_avatar.engine.portrait.grid import Grid

_BROWS = ((33, 133, (70, 63, 105, 66, 107)), (362, 263, (336, 296, 334, 293, 300)))
"""Outer or inner eye corner on the left, the other on the right, brow."""
_DEPTH_POINTS = (
    *OVAL,
    *(1, 4, 5, 195, 197, 6, 168, 2, 98, 327, 48, 278, 0, 17, 61, 291, 13, 14, 50, 280, 205, 425),
    *(33, 133, 362, 263, 70, 105, 107, 336, 334, 300, 9, 8, 151, 69, 299, 117, 346, 187, 411, 199),
)
_AXIS_BEHIND = 0.12
"""The head turns about an axis this far behind the ears, in face heights."""


class HeadRig:
    """The head's weights and depth on a grid over the frame. Immutable."""

    def __init__(self, photo: FramedPhoto) -> None:
        height, width = photo.image.shape[:2]
        points = photo.landmarks[:, :2]
        self.face_height = float(np.linalg.norm(points[FOREHEAD] - points[CHIN]))
        self.grid = Grid.over(0, 0, width, height, 8 if self.face_height >= 300 else 4)
        self.nodes = self.grid.nodes()
        at = np.moveaxis(self.nodes, 0, -1)
        self.pivot = np.array(
            [
                (points[LEFT_EAR, 0] + points[RIGHT_EAR, 0] + 2 * points[CHIN, 0]) / 4,
                points[CHIN, 1] + 0.35 * self.face_height,
            ],
            np.float32,
        )
        near = self._near_person(photo.mask)
        chin = points[CHIN, 1]
        _, ys = self.nodes
        neck = 1 - smoothstep(ys, chin + 0.05 * self.face_height, chin + 0.80 * self.face_height)
        self.follows = near * neck * self._inside(width)
        depth = self._depth(photo.landmarks, at)
        self.turns = (depth + _AXIS_BEHIND * self.face_height) * self.follows
        body = smoothstep(ys, chin + 0.1 * self.face_height, chin + 0.9 * self.face_height)
        self.breathes = near * body * (1 - smoothstep(ys, 0.93 * height, height + 4.0))
        self.brows = self._brows(points, at)

    def displacement(self, state: FaceState) -> Array:
        """Return how far each node moves, (2, rows, columns), in pixels."""
        yaw, pitch, roll = np.deg2rad([state.yaw, state.pitch, state.roll])
        cos, sin = float(np.cos(roll)) - 1, float(np.sin(roll))
        size = self.face_height
        xs = self.nodes[0] - self.pivot[0]
        ys = self.nodes[1] - self.pivot[1]
        across = (xs * cos - ys * sin + float(state.shift_x) * size) * self.follows
        down = (xs * sin + ys * cos + float(state.shift_y) * size) * self.follows
        across += self.turns * float(np.sin(yaw))
        down += self.turns * float(np.sin(pitch))
        down -= self.breathes * (float(state.breath) * 0.006 * size)
        down -= self.brows * (float(state.brow) * 0.022 * size)
        return np.stack([across, down]).astype(np.float32)

    def _inside(self, width: int) -> Array:
        """0 at the frame's upper and side edges: beyond them there is nothing to move in."""
        xs, ys = self.nodes
        edge = np.minimum(np.minimum(xs, width - 1 - xs), ys)
        return smoothstep(edge, 0.0, 0.12 * self.face_height)

    def _near_person(self, mask: Array) -> Array:
        """1 on the person, falling to 0 over a quarter of the face's height around."""
        size = (self.grid.columns * 2, self.grid.rows * 2)
        small = cv2.resize(mask, size, interpolation=cv2.INTER_AREA)
        away = cv2.distanceTransform((small < 0.5).astype(np.uint8), cv2.DIST_L2, 5)
        away = away * (self.grid.step / 2)
        near = 1 - smoothstep(away, 0.01 * self.face_height, 0.24 * self.face_height)
        near = cv2.resize(near, (self.grid.columns, self.grid.rows), interpolation=cv2.INTER_AREA)
        return np.pad(near, 1, mode="edge").astype(np.float32)

    def _depth(self, landmarks: Array, at: Array) -> Array:
        """How far each node lies before the ears, in pixels, 0 at the outline of the head."""
        points, z = landmarks[:, :2], landmarks[:, 2]
        chosen = list(_DEPTH_POINTS)
        ears = float((z[LEFT_EAR] + z[RIGHT_EAR]) / 2)
        center = (points[LEFT_EAR] + points[RIGHT_EAR] + points[FOREHEAD] + points[CHIN]) / 4
        radius = self.face_height
        angles = np.linspace(0, 2 * np.pi, 28, endpoint=False)
        ring = center + radius * np.stack([0.85 * np.cos(angles), 1.0 * np.sin(angles)], -1)
        knots = np.concatenate([points[chosen], ring])
        values = np.concatenate([np.maximum(ears - z[chosen], 0), np.zeros(len(ring))])
        field = thin_plate(knots, values * 0.8, at, smoothing=0.05)
        around = (at - center) / radius
        inside = np.sqrt((around[..., 0] / 0.85) ** 2 + around[..., 1] ** 2)
        fade = 1 - smoothstep(inside, 0.75, 1.0)
        return np.asarray(np.clip(field, 0, None) * fade, np.float32)

    def _brows(self, points: Array, at: Array) -> Array:
        total = np.zeros(at.shape[:2], np.float32)
        for left, right, brow in _BROWS:
            frame = LocalFrame.between(points[left], points[right])
            u, v = frame.local(at)
            _, brow_v = frame.local(points[list(brow)])
            line = float(brow_v.mean())
            rise = smoothstep(-v, -0.15 * line, -1.05 * line)
            fall = 1 - smoothstep(-v, -1.25 * line, -1.25 * line + 0.25 * self.face_height)
            total = np.maximum(total, rise * fall * bump(u / frame.half, 0.0, 1.7))
        return total
