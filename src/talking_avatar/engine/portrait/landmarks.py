"""The 468 points of a face.

Takes: an RGB image and, roughly, where its face is. Gives: `Mesh`. Never: decides anything.

Also what tests measure rendered frames with: `FaceMesh().landmarks(frame)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.portrait.detect import Detection, FaceDetector
from talking_avatar.engine.portrait.networks import Network, opencv_threads

INPUT_PX = 192
CROP_FACTOR = 1.5
"""Side of the crop, relative to the face in it: what the network was trained with."""
NUM_PASSES = 2
"""The first crop comes from the detector's box, the next from the points found in it."""
FOREHEAD, CHIN = 10, 152
EYE_OUTER_LEFT, EYE_OUTER_RIGHT = 33, 263
"""Outer corners of the eyes, left and right as seen in the picture."""


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """A face found in an image.

    Attributes:
        points: float32 (468, 3): x, y in pixels of the image; z in the same scale, smaller is
            nearer to the camera.
        score: 0 to 1: how sure the network is that this is a face.
    """

    points: npt.NDArray[np.float32]
    score: float

    @property
    def height_px(self) -> float:
        """From the top of the forehead to the chin."""
        return float(np.linalg.norm(self.points[FOREHEAD, :2] - self.points[CHIN, :2]))


class FaceMesh:
    """MediaPipe's face mesh, run by OpenCV: about 2.2 ms a pass on one core."""

    def __init__(self, detector: FaceDetector | None = None) -> None:
        self._detector = detector or FaceDetector()
        self._network = Network("face_landmark", ("conv2d_21", "conv2d_31"))

    def landmarks(self, rgb: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32], float]:
        """Find the points of the largest face.

        Args:
            rgb: uint8 (H, W, 3).

        Returns:
            float32 (468, 3) as in `Mesh.points`, and the score.

        Raises:
            LookupError: There is no face.
        """
        faces = self._detector.detect(rgb, tile_divisors=(1,)) or self._detector.detect(rgb)
        if not faces:
            raise LookupError(f"no face in an image of {rgb.shape[1]}x{rgb.shape[0]}")
        mesh = self.fit(rgb, faces[0])
        return mesh.points, mesh.score

    def fit(self, rgb: npt.NDArray[np.uint8], face: Detection) -> Mesh:
        """Find the points of one detected face.

        Args:
            rgb: uint8 (H, W, 3).
            face: Where it is in ``rgb``.
        """
        return self._refine(rgb, face.center, face.size, _angle(face.eyes[0], face.eyes[1]))

    def refit(self, rgb: npt.NDArray[np.uint8], points: npt.NDArray[np.float32]) -> Mesh:
        """Find the points again, starting from others that are nearly right.

        Args:
            rgb: uint8 (H, W, 3).
            points: (468, 3), in pixels of ``rgb``.
        """
        return self._refine(rgb, *_crop_around(points))

    def _refine(
        self, rgb: npt.NDArray[np.uint8], center: npt.NDArray[np.float32], size: float, angle: float
    ) -> Mesh:
        for _ in range(NUM_PASSES):
            mesh = self._one_pass(rgb, center, size, angle)
            center, size, angle = _crop_around(mesh.points)
        return mesh

    def _one_pass(
        self, rgb: npt.NDArray[np.uint8], center: npt.NDArray[np.float32], size: float, angle: float
    ) -> Mesh:
        scale = INPUT_PX / (size * CROP_FACTOR)
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        turn = np.array([[cos, sin], [-sin, cos]], np.float32)
        shift = INPUT_PX / 2 - turn @ center
        to_crop = np.hstack([turn, shift[:, None]]).astype(np.float32)
        crop = _warp_small(rgb, to_crop, scale)
        points, logit = self._network(crop.astype(np.float32) / np.float32(255))
        points = points.reshape(468, 3)
        back = np.linalg.inv(turn)
        points[:, :2] = (points[:, :2] - shift) @ back.T
        points[:, 2] /= scale
        return Mesh(points, float(1 / (1 + np.exp(-logit.item()))))


def _warp_small(
    rgb: npt.NDArray[np.uint8], to_crop: npt.NDArray[np.float32], scale: float
) -> npt.NDArray[np.uint8]:
    """Cut the crop out; a strong reduction averages first, or it would alias."""
    size = (INPUT_PX, INPUT_PX)
    with opencv_threads():
        shrink = int(0.75 / scale)
        if shrink >= 2:
            height, width = rgb.shape[0] // shrink, rgb.shape[1] // shrink
            rgb = cv2.resize(
                rgb[: height * shrink, : width * shrink],
                (width, height),
                interpolation=cv2.INTER_AREA,
            ).astype(np.uint8, copy=False)
            to_crop = to_crop.copy()
            # Pixel centers: x = shrink * x_small + (shrink - 1) / 2.
            to_crop[:, 2] += to_crop[:, :2].sum(axis=1) * (shrink - 1) / 2
            to_crop[:, :2] *= shrink
        crop = cv2.warpAffine(rgb, to_crop, size, flags=cv2.INTER_LINEAR)
    return crop.astype(np.uint8, copy=False)


def _crop_around(
    points: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], float, float]:
    """Center, size and angle of the upright box around a face."""
    flat = points[:, :2]
    angle = _angle(flat[EYE_OUTER_LEFT], flat[EYE_OUTER_RIGHT])
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, sin], [-sin, cos]], np.float32)
    upright = flat @ turn.T
    low, high = upright.min(axis=0), upright.max(axis=0)
    center = (turn.T @ ((low + high) / 2)).astype(np.float32)
    return center, float((high - low).max()), angle


def _angle(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> float:
    return float(np.arctan2(right[1] - left[1], right[0] - left[0]))
