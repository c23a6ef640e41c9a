"""How lips, jaw and corners of one photo move.

Takes the photo's lip lines and landmarks, gives for any `MouthShape` where each node of a grid over
the lower face is taken from: once for what hangs on the upper lip, once for what hangs on the
lower. The two agree beyond the corners of the mouth and differ only between the lips.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import cv2
import numpy as np

from talking_avatar.engine.portrait.face import MouthShape
from talking_avatar.engine.portrait.geometry import (
    CHIN,
    FOREHEAD,
    NOSE_TIP,
    OVAL,
    Array,
    smoothstep,
)
from talking_avatar.engine.portrait.grid import Grid
from talking_avatar.engine.portrait.liplines import LipLines
from talking_avatar.engine.portrait.mouth_fields import MouthFields

_NUM_INVERSIONS = 4
"""Fixed-point steps that turn a forward displacement into a sampling position. At the widest
opening what is left is 0.1 to 1 px on the test portraits: a little less travel, and no tear."""
_WIDE_SMILE = (0.28, 0.40)
"""Gaps of the photo's own mouth, in half mouth widths, between which lips press edge to edge."""


@dataclass(frozen=True, slots=True)
class MouthMotion:
    """A `MouthShape` in pixels of one photo; one weight per displacement field.

    Attributes:
        close: Share of the photo's own gap that is closed.
        lift: Upper lip's middle moves up by this.
        drop: Lower lip's middle moves down by this.
        jaw: Chin moves down by this.
        spread, pucker, smile, tuck: As in `MouthShape`.
        corners: 1 where the open corners of the photo's mouth are shut, 0 where they show.
        under: How far the pressed lower lip goes under the upper one instead of before it.
    """

    close: float
    lift: float
    drop: float
    jaw: float
    spread: float
    pucker: float
    smile: float
    tuck: float
    corners: float
    under: float

    @classmethod
    def of(cls, shape: MouthShape, lines: LipLines) -> MouthMotion:
        """Scale a shape to a mouth."""
        half = lines.frame.half
        opened, jaw, spread = float(shape.open), float(shape.jaw), float(shape.spread)
        pucker, tuck = float(shape.pucker), float(shape.teeth_on_lip)
        gap = opened * half * (0.56 + 0.22 * jaw) * (1 - 0.15 * pucker)
        share = 0.24 + 0.14 * max(spread, 0.0)  # mostly the jaw opens a mouth
        # Lips that close over a smile smile less, and press together: no slit of light is left.
        closed = float(shape.close) if lines.is_open else 0.0
        relaxed = closed * min(lines.gap, 0.5)
        touching = 1 - float(smoothstep(opened, 0.0, 0.25))
        press = float(np.clip(shape.press, 0, 1)) * touching * (1 - tuck) * float(shape.close)
        # Lips cut out around many teeth have no skin to go on under each other.
        under = 1 - float(smoothstep(lines.gap, *_WIDE_SMILE))
        over = 1 - under
        firm = closed * touching * (0.08 + 0.07 * under) + press * (
            0.08 * over + (0.18 - 0.06 * closed) * under
        )
        return cls(
            close=float(shape.close),
            lift=share * gap + half * (0.13 * tuck - 0.08 * over * press),
            drop=(1 - share) * gap - half * (0.03 * tuck + firm),
            jaw=half * (0.40 * jaw - 0.50 * relaxed),
            spread=spread - 0.6 * opened * jaw - 0.9 * relaxed,
            pucker=pucker,
            smile=float(shape.smile) - 1.4 * relaxed,
            tuck=tuck,
            corners=closed * (1 - float(smoothstep(opened, 0.1, 0.6))),
            under=under * float(smoothstep(max(press, closed * touching), 0.0, 0.3)),
        )

    def weights(self) -> Array:
        values = (self.close, self.lift, self.drop, self.jaw)
        return np.array(
            [*values, self.spread, self.pucker, self.smile, self.tuck], dtype=np.float32
        )


@dataclass(frozen=True, slots=True, eq=False)
class MouthPose:
    """A mouth in one frame, on the nodes of its rig's grid.

    Attributes:
        shape: What it does.
        motion: The same in pixels.
        place: (2, rows, columns) position of each node's pixel on the unmoved head.
        upper: Position in the photo of what hangs on the upper lip.
        lower: The same for the lower lip.
    """

    shape: MouthShape
    motion: MouthMotion
    place: Array
    upper: Array
    lower: Array


class MouthRig:
    """The displacement fields of one mouth. Immutable."""

    def __init__(self, lines: LipLines, landmarks: Array, frame: Grid) -> None:
        self.lines = lines
        points = landmarks[:, :2]
        face_height = float(np.linalg.norm(points[FOREHEAD] - points[CHIN]))
        margin = 0.10 * face_height
        half = lines.frame.half
        step = 2 if half < 36 else 4 if half < 64 else 6
        unit = lcm(step, frame.step)
        oval = points[list(OVAL)]
        self.grid = Grid.over(
            max(oval[:, 0].min() - margin, 0),
            max(points[NOSE_TIP, 1] - margin, 0),
            min(oval[:, 0].max() + margin, frame.width // unit * unit),
            min(points[CHIN, 1] + 3.0 * margin, frame.height // unit * unit),
            step,
            align=unit,
        )
        self.nodes = self.grid.nodes()
        self._upper, self._lower = MouthFields(lines, landmarks, self.grid).layers()

    def pose(self, shape: MouthShape, place: Array) -> MouthPose:
        """Move the mouth.

        Args:
            shape: What it does.
            place: (2, rows, columns) position of each node's pixel on the unmoved head.
        """
        motion = MouthMotion.of(shape, self.lines)
        weights = motion.weights()
        upper = self._invert(self._upper, weights, place)
        lower = self._invert(self._lower, weights, place)
        return MouthPose(shape, motion, place, upper, lower)

    def shown(self, pose: MouthPose) -> Array:
        """Choose for each node the layer that covers the other, parted where the lips part."""
        u, v = self.lines.frame.local(np.moveaxis(pose.upper, 0, -1))
        return np.where(v < self.lines.parting(u), pose.upper, pose.lower)

    def _invert(self, basis: Array, weights: Array, place: Array) -> Array:
        active = np.flatnonzero(weights)
        if not len(active):
            return place
        forward = np.zeros(basis.shape[1:], np.float32)
        for index in active:
            cv2.scaleAdd(basis[index], float(weights[index]), forward, dst=forward)
        scale = 1 / self.grid.step
        base_x = (place[0] - self.nodes[0, 0, 0]) * scale
        base_y = (place[1] - self.nodes[1, 0, 0]) * scale
        xs, ys = base_x, base_y
        moved: Array = forward
        for _ in range(_NUM_INVERSIONS + 1):
            moved = cv2.remap(forward, xs, ys, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            xs = base_x - moved[..., 0] * scale
            ys = base_y - moved[..., 1] * scale
        return np.stack([place[0] - moved[..., 0], place[1] - moved[..., 1]])
