"""The displacement fields of a mouth: which way each point goes when one thing moves.

Takes lip lines, landmarks and a grid, gives two stacks of eight fields, for what hangs on the upper
lip and for what hangs on the lower. Called once a photo; draws and animates nothing.
"""

from __future__ import annotations

import numpy as np

from talking_avatar.engine.portrait.geometry import (
    CHIN,
    FOREHEAD,
    NOSE_BASE,
    Array,
    bump,
    smoothstep,
    thin_plate,
)
from talking_avatar.engine.portrait.grid import Grid
from talking_avatar.engine.portrait.liplines import LipLines

_JAW_WEIGHTS = {
    1.0: (152, 148, 377, 17, 14, 84, 314),
    0.97: (176, 400),
    0.93: (149, 378),
    0.85: (150, 379, 91, 321),
    0.72: (136, 365),
    0.5: (172, 397, 212, 432),
    0.4: (214, 434),
    0.3: (61, 291, 58, 288),
    0.25: (207, 427),
    0.1: (205, 425, 132, 361, 187, 411),
    0.0: (93, 323, 50, 280, 2, 164, 0, 98, 327, 234, 454),
}
"""How far landmarks follow the jaw: 1 at the chin, 0 at the nose and before the ears."""
_JAWLINE = (58, 172, 136, 150, 149, 176, 148, 152, 377, 400, 378, 379, 365, 397, 288)


class MouthFields:
    """Builds the fields of one mouth: call `layers` once, then forget it."""

    def __init__(self, lines: LipLines, landmarks: Array, grid: Grid) -> None:
        frame, points = lines.frame, landmarks[:, :2]
        self.frame, self.half = frame, frame.half
        self.face_height = float(np.linalg.norm(points[FOREHEAD] - points[CHIN]))
        self.points, self.at = points, np.moveaxis(grid.nodes(), 0, -1)
        self.u, self.v = frame.local(self.at)
        self.is_open = lines.is_open
        self.x = self.u / frame.half
        self.upper, self.lower = lines.upper(self.u), lines.lower(self.u)
        self.top, self.bottom = lines.top(self.u), lines.bottom(self.u)
        self.parting = lines.parting(self.u)
        self.window = self._window(grid)
        _, v_nose = frame.local(points[NOSE_BASE])
        _, v_chin = frame.local(points[CHIN])
        self.on_upper = smoothstep(self.v, float(v_nose) * 0.92, np.maximum(self.top, v_nose * 0.6))
        self.relaxes_upper = smoothstep(self.v, float(v_nose) * 0.95, self.upper)
        reach = np.maximum(float(v_chin) - self.bottom, 0.4 * self.half)
        self.on_lower = 1 - smoothstep(self.v, self.bottom, self.bottom + 0.75 * reach)
        self.relaxes_lower = 1 - smoothstep(self.v, self.lower, self.bottom + 0.75 * reach)
        self.opening = np.clip(1 - (self.x / 1.07) ** 2, 0, 1) ** 0.7

    def _window(self, grid: Grid) -> Array:
        rows, columns = self.u.shape
        down, across = np.arange(rows), np.arange(columns)
        side = np.minimum(across, across[::-1])[None] * grid.step
        rise = smoothstep(side, 0, 0.10 * self.face_height)
        rise = rise * smoothstep(down[:, None] * grid.step, 0, 0.06 * self.face_height)
        low = down[::-1][:, None] * grid.step
        return np.asarray(rise * smoothstep(low, 0, 0.10 * self.face_height), np.float32)

    def layers(self) -> tuple[Array, Array]:
        """Return the fields of the upper and of the lower layer, (8, rows, columns, 2) each.

        In the order of `MouthMotion`'s values; displacements in pixels for a value of 1.
        """
        outside = smoothstep(np.abs(self.x), 0.88, 1.12)
        softness = self.half * (0.08 + 0.8 * np.clip(np.abs(self.x) - 0.9, 0, 2))
        below = 1 / (1 + np.exp(-np.clip((self.v - self.parting) / softness, -30, 30)))
        moves_up, moves_down = self._upper(), self._lower()
        layers = []
        for share in (outside * below, 1 - outside * (1 - below)):
            fields = [
                (1 - share) * up + share * low for up, low in zip(moves_up, moves_down, strict=True)
            ]
            layers.append(np.ascontiguousarray(np.moveaxis(np.stack(fields), 1, -1), np.float32))
        return layers[0], layers[1]

    def _down(self, amount: Array) -> Array:
        return self.frame.vector(np.zeros_like(self.u), amount * self.window)

    def _upper(self) -> list[Array]:
        aside = np.exp(-((np.maximum(np.abs(self.x) - 1.0, 0) / 0.35) ** 2))
        zero = np.zeros((2, *self.u.shape), np.float32)
        thick = np.maximum(self.upper - self.top, 0.08 * self.half)
        return [
            self._down((self.parting - self.upper) * self.relaxes_upper * aside),
            self._down(-self.opening * self.on_upper),
            zero,
            zero,
            self._spread(),
            self._pucker(-_swell((self.upper - self.v) / thick)),
            self._smile(),
            zero,
        ]

    def _lower(self) -> list[Array]:
        aside = np.exp(-((np.maximum(np.abs(self.x) - 1.0, 0) / 0.35) ** 2))
        zero = np.zeros((2, *self.u.shape), np.float32)
        thick = np.maximum(self.bottom - self.lower, 0.08 * self.half)
        lip = self.opening**0.5 * self.on_lower
        rolled = smoothstep(self.v, self.lower, self.bottom) * self.on_lower
        return [
            self._down((self.parting - self.lower) * self.relaxes_lower * aside),
            zero,
            self._down(self.opening * self.on_lower),
            self._down(self._jaw() * (1 - lip)),
            self._spread(),
            self._pucker(_swell((self.v - self.lower) / thick)),
            self._smile(),
            self._down(-0.12 * self.half * self.opening * rolled),
        ]

    def _spread(self) -> Array:
        reach = (self.u / (1.55 * self.half)) ** 2 + (
            (self.v - self.parting) / (1.05 * self.half)
        ) ** 2
        near = np.exp(-(reach**1.5)) * self.window
        outward = 0.11 * self.u * near
        upward = -0.03 * self.half * np.minimum(np.abs(self.x), 1.3) ** 2 * near
        return self.frame.vector(outward, upward)

    def _pucker(self, swell: Array) -> Array:
        reach = (self.u / (1.5 * self.half)) ** 2 + (
            (self.v - self.parting) / (1.05 * self.half)
        ) ** 2
        near = np.exp(-(reach**1.5)) * self.window
        thicken = (
            (0.09 if self.is_open else 0.13)
            * self.half
            * swell
            * np.clip(1 - (self.x / 1.1) ** 2, 0, 1)
            * self.window
        )
        return self.frame.vector(-0.36 * self.u * near, thicken)

    def _smile(self) -> Array:
        reach = ((np.abs(self.x) - 1.05) / 0.75) ** 2 + (
            (self.v - self.parting) / (0.75 * self.half)
        ) ** 2
        corner = np.exp(-reach) * self.window
        cheek = bump(np.abs(self.x), 1.45, 0.6) * bump(self.v, -0.75 * self.half, 0.6 * self.half)
        rise = 0.17 * corner + 0.05 * cheek * self.window
        return self.frame.vector(0.10 * self.half * np.tanh(2 * self.x) * corner, -self.half * rise)

    def _jaw(self) -> Array:
        knots = [self.points[i] for group in _JAW_WEIGHTS.values() for i in group]
        values = [weight for weight, group in _JAW_WEIGHTS.items() for _ in group]
        down = self.frame.axes[1] * self.face_height
        for index in _JAWLINE:
            center = index in (149, 176, 148, 152, 377, 400, 378)
            knots += [self.points[index] + 0.13 * down, self.points[index] + 0.30 * down]
            values += [0.38 if center else 0.12, 0.0]
        field = thin_plate(np.array(knots), np.array(values), self.at, smoothing=0.02)
        return np.clip(field, 0, 1)


def _swell(depth: Array) -> Array:
    """Rise from 0 at a lip's inner edge to 1 at its outer edge, then fade."""
    t = np.clip(depth, 0, 4)
    return np.asarray(t * np.exp((1 - t * t) / 2), np.float32)
