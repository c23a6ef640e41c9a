"""Whether a face can become a character: choose it, refuse it, or warn.

Takes: meshes found in a photo, and its pixels. Gives: the chosen mesh, its yaw, `PhotoWarning`s.
Never: opens files or runs a network.

Thresholds come from 31 portraits (24 people); what they measured stands beside each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.base import PhotoWarning
from talking_avatar.engine.portrait.drawn import MAX_FLAT_SHARE, flat_share
from talking_avatar.engine.portrait.landmarks import Mesh
from talking_avatar.engine.portrait.sunglasses import MIN_EYE_BRIGHTNESS, eye_brightness
from talking_avatar.errors import FaceBox, FaceTooSmall, FaceTurned, NoFace, SeveralFaces

MIN_MESH_SCORE = 0.5
"""Real faces: 0.99 and more, of what the detector mistook for a face: 0.05 and less."""
MIN_FACE_PX = 120
"""Forehead to chin. A smaller face would be enlarged more than about 3.3 times."""
BYSTANDER_RATIO = 0.5
"""Faces less than half as tall as the largest are passers-by, not a second choice."""
TURNED_WARNING_DEG = 20.0
TURNED_LIMIT_DEG = 35.0
"""Beyond it the far half of the mouth is too narrow to animate. Mesh yaw is right to 2 degrees."""
CUT_OFF_SHARE = 0.05
"""Of the face's height; as much of a face may lie beyond the photo's edge without a warning."""

_MOUTH_AND_CHIN = (61, 291, 0, 17, 152)
_SYMMETRIC = ((234, 454), (33, 263), (61, 291))


def choose_face(
    meshes: list[Mesh], size: tuple[int, int], pixels_per_px: float, face: int | None
) -> Mesh:
    """Pick the face that becomes the character.

    Args:
        meshes: All found in the photo, in pixels of a reduced copy.
        size: Width and height of that copy.
        pixels_per_px: Pixels of the photo for one of that copy.
        face: Index chosen by the caller, of the boxes in `SeveralFaces`; None if there is none.

    Raises:
        NoFace, SeveralFaces, FaceTooSmall: With numbers and what to do.
        ValueError: ``face`` is not an index of a face.
    """
    faces = [mesh for mesh in meshes if mesh.score >= MIN_MESH_SCORE]
    meshes = sorted(
        (
            mesh
            for mesh in faces
            if _beyond(mesh.points[list(_MOUTH_AND_CHIN)], size)
            <= CUT_OFF_SHARE / 2 * mesh.height_px
        ),
        key=lambda mesh: mesh.height_px,
        reverse=True,
    )
    if faces and not meshes:
        raise NoFace(
            "the only face is cut off by the edge of the photo: the mouth and the chin must be seen"
        )
    if not meshes:
        raise NoFace(
            "no human face was found in the photo: use one that shows a person from the front, "
            "upright and well lit; drawings and statues do not work"
        )
    if face is not None and not 0 <= face < len(meshes):
        raise ValueError(f"face={face}, but the photo has faces 0 to {len(meshes) - 1}")
    rivals = [m for m in meshes if m.height_px >= BYSTANDER_RATIO * meshes[0].height_px]
    if face is None and len(rivals) > 1:
        boxes = tuple(_box(i, mesh, pixels_per_px) for i, mesh in enumerate(meshes))
        where = "; ".join(f"face={b.index} at x={b.left}, y={b.top}" for b in boxes)
        raise SeveralFaces(
            f"{len(boxes)} faces were found: choose one by its index ({where}), or crop the photo",
            boxes,
        )
    chosen = meshes[face or 0]
    face_px = round(chosen.height_px * pixels_per_px)
    if face_px < MIN_FACE_PX:
        raise FaceTooSmall(
            f"the face is {face_px} px tall, from forehead to chin, and needs {MIN_FACE_PX}: "
            "use a larger or closer photo",
            face_px=face_px,
            minimum_px=MIN_FACE_PX,
        )
    return chosen


def check_drawn(rgb: npt.NDArray[np.uint8], mesh: Mesh) -> None:
    """Refuse a face that was drawn.

    Raises:
        NoFace: It is flat where a photo never is.
    """
    share = flat_share(rgb, mesh)
    if share > MAX_FLAT_SHARE:
        raise NoFace(
            f"the face looks drawn: {share:.0%} of it is perfectly flat, where photos have at "
            f"most {MAX_FLAT_SHARE:.0%}; use a photo of a person"
        )


def check_cut_off(mesh: Mesh, size: tuple[int, int]) -> tuple[PhotoWarning, ...]:
    """Warn of a face that is not wholly in a picture of this width and height."""
    share = _beyond(mesh.points, size) / mesh.height_px
    if share <= CUT_OFF_SHARE:
        return ()
    return (
        PhotoWarning(
            "cut_off",
            f"the photo's edge cuts {share:.0%} of the face off; the background shows beyond it",
        ),
    )


def yaw_deg(points: npt.NDArray[np.float32]) -> float:
    """How far a head is turned; positive: nose to the right as seen in the picture."""
    across = np.mean([points[right] - points[left] for left, right in _SYMMETRIC], axis=0)
    return float(np.degrees(np.arctan2(across[2], np.hypot(across[0], across[1]))))


def check_turned(yaw: float) -> tuple[PhotoWarning, ...]:
    """Refuse a head that is turned too far, warn of one that nearly is.

    Raises:
        FaceTurned: With the angle and its limit.
    """
    side = "right" if yaw > 0 else "left"
    if abs(yaw) > TURNED_LIMIT_DEG:
        raise FaceTurned(
            f"the head is turned {abs(yaw):.0f} degrees to the {side} of the picture, and at most "
            f"{TURNED_LIMIT_DEG:.0f} can be animated: use a photo that looks into the camera",
            yaw_deg=yaw,
            limit_deg=TURNED_LIMIT_DEG,
        )
    if abs(yaw) < TURNED_WARNING_DEG:
        return ()
    return (
        PhotoWarning(
            "turned",
            f"the head is turned {abs(yaw):.0f} degrees to the {side} of the picture; below "
            f"{TURNED_WARNING_DEG:.0f} the mouth looks more natural",
        ),
    )


def check_sunglasses(
    rgb: npt.NDArray[np.uint8], points: npt.NDArray[np.float32]
) -> tuple[PhotoWarning, ...]:
    """Warn of eyes that cannot be seen."""
    brightness = eye_brightness(rgb, points)
    if brightness >= MIN_EYE_BRIGHTNESS:
        return ()
    return (
        PhotoWarning(
            "sunglasses",
            f"the eyes are hidden by dark glasses ({brightness:.0%} as bright as the cheeks): the "
            "character will not blink or move its eyes",
        ),
    )


def _beyond(points: npt.NDArray[np.float32], size: tuple[int, int]) -> float:
    """How far the outermost point lies outside of a picture, in pixels; negative inside."""
    flat = points[:, :2]
    return float(max((-flat).max(), (flat - np.asarray(size, np.float32)).max()))


def _box(index: int, mesh: Mesh, scale: float) -> FaceBox:
    low, high = mesh.points[:, :2].min(axis=0) * scale, mesh.points[:, :2].max(axis=0) * scale
    return FaceBox(
        index=index,
        left=round(float(low[0])),
        top=round(float(low[1])),
        width=round(float(high[0] - low[0])),
        height=round(float(high[1] - low[1])),
        score=mesh.score,
    )
