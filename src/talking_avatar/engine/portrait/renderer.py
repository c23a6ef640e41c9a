"""Draw one frame of a face.

Takes a `FramedPhoto` once and a `FaceState` per frame; gives RGB pixels. Keeps no state between
frames: one renderer may serve any number of streams and threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from talking_avatar.engine.portrait.eyes import Eye, eyes_of
from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import Array
from talking_avatar.engine.portrait.grid import Pixels, Texture, warp_into
from talking_avatar.engine.portrait.head import HeadRig
from talking_avatar.engine.portrait.liplines import find_lip_lines
from talking_avatar.engine.portrait.lips import Lips
from talking_avatar.engine.portrait.mouth import MouthPose, MouthRig


@dataclass(frozen=True, slots=True, eq=False)
class FrameLayers:
    """How the pixels of a frame come about. Blinks and glances are not in it.

    Attributes:
        flow: float32 (2, rows, columns): a pixel at (x, y) is taken from the photo at
            (x + flow[0], y + flow[1]). One value per cell of ``step`` by ``step`` pixels, at its
            middle.
        step: Pixels per cell.
        mouth: float32 (H, W): share of each pixel that shows the inner mouth.
    """

    flow: Array
    step: int
    mouth: Array


class PortraitRenderer:
    """Animates one photo. Immutable after construction, which takes about half a second.

    Args:
        photo: The photo, framed to the output size.
    """

    def __init__(self, photo: FramedPhoto) -> None:
        self.height, self.width = photo.image.shape[:2]
        lines = find_lip_lines(photo.image, photo.landmarks)
        self._texture = Texture.of(photo.image)
        self._head = HeadRig(photo)
        self._mouth = MouthRig(lines, photo.landmarks, self._head.grid)
        self._around = self._head.grid.around(self._mouth.grid)
        self._lips = Lips(photo, self._mouth, self._texture)
        self._eyes: list[Eye] = eyes_of(photo, self._texture) if photo.eyes_visible else []
        nodes = (self._mouth.nodes - self._head.nodes[:, :1, :1]) / self._head.grid.step
        self._mouth_in_head = nodes.astype(np.float32)

    def render(self, state: FaceState, out: Pixels | None = None) -> Pixels:
        """Draw a frame.

        Args:
            state: How the face looks.
            out: Where to draw, uint8 (H, W, 3) in one piece; a new array when left out.

        Returns:
            uint8 RGB (H, W, 3).

        Raises:
            ValueError: ``out`` does not fit.
        """
        shape = (self.height, self.width, 3)
        frame = np.empty(shape, np.uint8) if out is None else out
        if frame.shape != shape or frame.dtype != np.uint8 or not frame.flags.c_contiguous:
            raise ValueError(f"out must be a contiguous uint8 array of shape {shape}")
        head = self._head
        moved = head.displacement(state)
        place = head.nodes - moved
        for part in self._around:
            window = (slice(None), *head.grid.window(part))
            warp_into(frame, self._texture, part, place[window])
        pose = self._pose(state, moved)
        warp_into(frame, self._texture, self._mouth.grid, self._mouth.shown(pose))
        self._lips.draw(frame, pose)
        for eye in self._eyes:
            eye.draw(frame, state, head.grid, place)
        return frame

    def layers(self, state: FaceState) -> FrameLayers:
        """Return how the pixels of a frame come about, for models that learn from this one."""
        head, mouth = self._head, self._mouth
        moved = head.displacement(state)
        pose = self._pose(state, moved)
        flow = -moved[:, 1:-1, 1:-1]
        inside = self._mouth.shown(pose) - mouth.nodes
        columns, rows = (
            n * mouth.grid.step // head.grid.step for n in (mouth.grid.columns, mouth.grid.rows)
        )
        top, left = ((start // head.grid.step) for start in (mouth.grid.y0, mouth.grid.x0))
        for axis in range(2):
            cells = cv2.resize(
                inside[axis, 1:-1, 1:-1], (columns, rows), interpolation=cv2.INTER_AREA
            )
            flow[axis, top : top + rows, left : left + columns] = cells
        return FrameLayers(flow, head.grid.step, self._lips.gap(pose, self.width, self.height))

    def _pose(self, state: FaceState, moved: Array) -> MouthPose:
        place = self._mouth.nodes - sample(moved, self._mouth_in_head)
        return self._mouth.pose(state.mouth, place)


def sample(field: Array, at: Array) -> Array:
    """Look up a node field (2, rows, columns) at node coordinates (2, ...)."""
    border = cv2.BORDER_REPLICATE
    parts = [cv2.remap(part, at[0], at[1], cv2.INTER_LINEAR, borderMode=border) for part in field]
    return np.asarray(np.stack(parts), np.float32)
