"""A photo made ready for the renderer: the only value that passes from the photo room to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.base import PhotoWarning


@dataclass(frozen=True, slots=True, eq=False)
class FramedPhoto:
    """A photo, upright, cropped to the output size around its face.

    Attributes:
        image: uint8 RGB (H, W, 3), H and W the output size.
        landmarks: float32 (468, 3): MediaPipe's face mesh; x, y in pixels of ``image``, z in the
            same scale, smaller is nearer.
        mask: float32 (H, W): 1 where the person is.
        yaw_deg: How far the head is turned; positive: nose to the right as seen in the picture.
        eyes_visible: False behind sunglasses: the eyes are then left as they are.
        warnings: What the caller should know.
    """

    image: npt.NDArray[np.uint8]
    landmarks: npt.NDArray[np.float32]
    mask: npt.NDArray[np.float32]
    yaw_deg: float
    eyes_visible: bool
    warnings: tuple[PhotoWarning, ...] = ()
