"""The photo room: a photo in, a `FramedPhoto` out, or an error that says what to do.

Takes: anything that `open_photo` takes. Gives: `FramedPhoto`.
Never: animates. Blocks for some hundred milliseconds: call it off the event loop.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from talking_avatar.engine.base import Photo, PhotoWarning
from talking_avatar.engine.portrait.detect import FaceDetector
from talking_avatar.engine.portrait.examine import (
    check_cut_off,
    check_drawn,
    check_sunglasses,
    check_turned,
    choose_face,
    yaw_deg,
)
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.framing import Crop, FacePlace, choose_crop, cut
from talking_avatar.engine.portrait.landmarks import EYE_OUTER_LEFT, EYE_OUTER_RIGHT, FaceMesh, Mesh
from talking_avatar.engine.portrait.networks import Network, opencv_threads
from talking_avatar.engine.portrait.photo import RGB, StillImage, open_photo
from talking_avatar.engine.portrait.upright import is_surely_upright, quarter_turns

OVERVIEW_PX = 2048
"""Longer side of the copy in which faces are searched: the smallest face that is accepted in the
largest photo still has about 25 pixels there."""
PERSON_INPUT_PX = 256


class PhotoRoom:
    """Opens, judges and frames photos. Safe to share between threads."""

    def __init__(self) -> None:
        self._detector = FaceDetector()
        self._mesh = FaceMesh(self._detector)
        self._person = Network("selfie_segmentation", ("activation_10",))

    def prepare(
        self, photo: Photo, *, width: int, height: int, background: RGB, face: int | None = None
    ) -> FramedPhoto:
        """Make a photo ready for the renderer.

        Args:
            photo: See `Photo`.
            width: Of the frame, in pixels.
            height: Of the frame.
            background: RGB where the photo ends or is transparent.
            face: Index of the face to take when there are several.

        Raises:
            PhotoError: One of its kinds.
            ValueError: ``face`` is not an index of a face, or an array is not RGB uint8.
        """
        image = open_photo(photo, background)
        overview, meshes, rotated = self._look(image)
        enlarged = max(image.width, image.height) / max(overview.shape[:2])
        size = overview.shape[1], overview.shape[0]
        mesh = choose_face(meshes, size, enlarged, face)
        check_drawn(overview, mesh)
        yaw = yaw_deg(mesh.points)
        turned = check_turned(yaw)
        crop = choose_crop(_place(mesh, enlarged), image.width, image.height, width, height)
        frame = cut(image, crop, width, height, background)
        exact = self._mesh.refit(frame, _into_frame(mesh.points * enlarged, crop))
        sunglasses = check_sunglasses(frame, exact.points)
        return FramedPhoto(
            image=frame,
            landmarks=exact.points,
            mask=self._mask(frame),
            yaw_deg=yaw,
            eyes_visible=not sunglasses,
            warnings=(*rotated, *turned, *sunglasses, *check_cut_off(mesh, size)),
        )

    def _look(
        self, image: StillImage
    ) -> tuple[npt.NDArray[np.uint8], list[Mesh], tuple[PhotoWarning, ...]]:
        """Find the faces in a reduced copy; turn the photo if it lies on its side or head."""
        overview = image.read_all(OVERVIEW_PX)
        faces = self._detector.detect(overview)
        warnings: tuple[PhotoWarning, ...] = ()
        if not is_surely_upright(faces):
            turns = quarter_turns(overview, self._detector, faces)
            if turns:
                image.turn(turns)
                overview = image.read_all(OVERVIEW_PX)
                faces = self._detector.detect(overview)
                warnings = (
                    PhotoWarning(
                        "rotated",
                        f"the photo was turned by {90 * turns} degrees counterclockwise, "
                        "as its face is then upright",
                    ),
                )
        return overview, [self._mesh.fit(overview, face) for face in faces], warnings

    def _mask(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Where the person is; (H, W), 0 to 1."""
        size = (PERSON_INPUT_PX, PERSON_INPUT_PX)
        with opencv_threads():
            small = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
            (mask,) = self._person(small.astype(np.float32) / np.float32(255))
            full = cv2.resize(
                mask.reshape(size), frame.shape[1::-1], interpolation=cv2.INTER_LINEAR
            )
        return np.clip(full, 0, 1).astype(np.float32, copy=False)


def _place(mesh: Mesh, enlarged: float) -> FacePlace:
    points = mesh.points[:, :2] * enlarged
    low, high = points.min(axis=0), points.max(axis=0)
    eyes = points[[EYE_OUTER_LEFT, EYE_OUTER_RIGHT]].mean(axis=0)
    return FacePlace(float((low[0] + high[0]) / 2), float(eyes[1]), mesh.height_px * enlarged)


def _into_frame(points: npt.NDArray[np.float32], crop: Crop) -> npt.NDArray[np.float32]:
    """From pixels of the photo to pixels of the frame."""
    corner = np.array([crop.left, crop.top, 0], np.float32)
    return ((points - corner) * crop.scale).astype(np.float32)
