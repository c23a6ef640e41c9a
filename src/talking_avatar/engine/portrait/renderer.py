"""Draw one frame of a face.

Takes a `FramedPhoto` once and a `FaceState` per frame; gives RGB pixels. Keeps no state between
frames: one renderer may serve any number of streams and threads.
"""

from __future__ import annotations

import cv2
import numpy as np

from talking_avatar.engine.portrait.eyes import Eye, eyes_of
from talking_avatar.engine.portrait.face import FaceState, MouthShape
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import Array
from talking_avatar.engine.portrait.grid import Pixels, Texture, warp_into
from talking_avatar.engine.portrait.head import HeadRig
from talking_avatar.engine.portrait.liplines import find_lip_lines
from talking_avatar.engine.portrait.lips import Lips
from talking_avatar.engine.portrait.mouth import MouthMotion, MouthRig


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

    def render(self, state: FaceState) -> Pixels:
        """Draw a frame.

        Args:
            state: How the face looks.

        Returns:
            A new uint8 RGB array (H, W, 3).
        """
        frame = np.empty((self.height, self.width, 3), np.uint8)
        head = self._head
        moved = head.displacement(state)
        place = head.nodes - moved
        for part in self._around:
            window = (slice(None), *head.grid.window(part))
            warp_into(frame, self._texture, part, place[window])
        self._draw_mouth(frame, state.mouth, moved)
        for eye in self._eyes:
            eye.draw(frame, state, head.grid, place)
        return frame

    def _draw_mouth(self, frame: Pixels, shape: MouthShape, moved: Array) -> None:
        rig = self._mouth
        motion = MouthMotion.of(shape, rig.lines)
        place = rig.nodes - sample(moved, self._mouth_in_head)
        upper, lower = rig.sources(motion, place)
        shown = np.where(rig.shows_upper(upper), upper, lower)
        warp_into(frame, self._texture, rig.grid, shown)
        self._lips.draw(frame, shape, motion, place, upper, lower)


def sample(field: Array, at: Array) -> Array:
    """Look up a node field (2, rows, columns) at node coordinates (2, ...)."""
    border = cv2.BORDER_REPLICATE
    parts = [cv2.remap(part, at[0], at[1], cv2.INTER_LINEAR, borderMode=border) for part in field]
    return np.asarray(np.stack(parts), np.float32)
