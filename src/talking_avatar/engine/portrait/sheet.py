"""Make a contact sheet of a portrait: every mouth shape, blink, glance and turn beside the photo.

    python -m talking_avatar.engine.portrait.sheet face.jpg -o sheet.png

For a person to look at: what a number misses (a seam, a tooth out of place, a wrong lid) is seen at
once. ``--part mouth`` and ``--part eyes`` show these at full size and more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from talking_avatar.config import PortraitConfig
from talking_avatar.engine.portrait.face import FaceState, MouthShape
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.geometry import CHIN, FOREHEAD, Array
from talking_avatar.engine.portrait.grid import Pixels
from talking_avatar.engine.portrait.renderer import PortraitRenderer
from talking_avatar.engine.portrait.room import PhotoRoom
from talking_avatar.errors import PhotoError

POSES: dict[str, FaceState | None] = {
    "photo": None,
    "neutral": FaceState(),
    "aa": FaceState(mouth=MouthShape(open=0.85, jaw=0.85, spread=0.1)),
    "ee": FaceState(mouth=MouthShape(open=0.3, jaw=0.2, spread=0.8)),
    "oo": FaceState(mouth=MouthShape(open=0.22, jaw=0.2, pucker=1.0)),
    "m": FaceState(mouth=MouthShape(jaw=0.05, spread=-0.05)),
    "f": FaceState(mouth=MouthShape(open=0.1, jaw=0.1, teeth_on_lip=1.0)),
    "l": FaceState(mouth=MouthShape(open=0.4, jaw=0.3, tongue=1.0)),
    "widest": FaceState(mouth=MouthShape(open=1.0, jaw=1.0)),
    "smile": FaceState(mouth=MouthShape(smile=1.0), brow=0.2),
    "half blink": FaceState(blink_left=0.5, blink_right=0.5),
    "blink": FaceState(blink_left=1.0, blink_right=1.0),
    "gaze left": FaceState(gaze_x=-1.0),
    "gaze right, down": FaceState(gaze_x=1.0, gaze_y=0.6),
    "brow": FaceState(brow=1.0),
    "turn": FaceState(mouth=MouthShape(open=0.3, jaw=0.2), yaw=6.0, pitch=3.0, roll=2.0),
}
_PARTS = ("frame", "face", "mouth", "eyes")


def contact_sheet(photo: FramedPhoto, *, part: str = "face", width: int = 320) -> Pixels:
    """Draw all poses of a photo in rows of four.

    Args:
        photo: The framed photo.
        part: ``"frame"``, ``"face"``, ``"mouth"`` or ``"eyes"``.
        width: Of one picture, in pixels.

    Returns:
        RGB uint8.
    """
    renderer = PortraitRenderer(photo)
    left, top, right, bottom = _crop(photo, part)
    cells = []
    for name, state in POSES.items():
        frame = photo.image if state is None else renderer.render(state)
        cells.append(_label(frame[top:bottom, left:right], name, width))
    rows = [np.hstack(cells[first : first + 4]) for first in range(0, len(cells), 4)]
    return np.vstack(rows)


def _crop(photo: FramedPhoto, part: str) -> tuple[int, int, int, int]:
    height, width = photo.image.shape[:2]
    if part == "frame":
        return 0, 0, width, height
    points: Array = photo.landmarks[:, :2]
    face = float(np.linalg.norm(points[FOREHEAD] - points[CHIN]))
    center, size = {
        "face": ((points[FOREHEAD] + points[CHIN]) / 2, (1.15 * face, 1.45 * face)),
        "mouth": ((points[13] + points[14]) / 2 + [0, 0.06 * face], (0.5 * face, 0.42 * face)),
        "eyes": ((points[33] + points[263]) / 2, (0.75 * face, 0.32 * face)),
    }[part]
    left, top = np.maximum(center - np.array(size) / 2, 0).astype(int)
    right, bottom = np.minimum(center + np.array(size) / 2, (width, height)).astype(int)
    return int(left), int(top), int(right), int(bottom)


def _label(image: Pixels, name: str, width: int) -> Pixels:
    height = round(image.shape[0] * width / image.shape[1])
    method = cv2.INTER_AREA if width < image.shape[1] else cv2.INTER_CUBIC
    cell = cv2.resize(image, (width, height), interpolation=method)
    for color, thickness in (((0, 0, 0), 3), ((255, 255, 255), 1)):
        cv2.putText(
            cell, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, color, thickness, cv2.LINE_AA
        )
    return np.asarray(cell, np.uint8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 when the photo cannot be used."""
    defaults = PortraitConfig()
    parser = argparse.ArgumentParser(prog="sheet", description="Contact sheet of a portrait.")
    parser.add_argument("photo", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("sheet.png"))
    parser.add_argument("--part", choices=_PARTS, default="face")
    parser.add_argument("--width", type=int, default=320, help="of one picture, in pixels")
    options = parser.parse_args(arguments)
    try:
        photo = PhotoRoom().prepare(
            options.photo,
            width=defaults.width,
            height=defaults.height,
            background=defaults.background,
        )
    except PhotoError as error:
        print(error)
        return 2
    for warning in photo.warnings:
        print(f"warning: {warning.message}")
    sheet = contact_sheet(photo, part=options.part, width=options.width)
    cv2.imwrite(str(options.output), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    print(f"{options.output}: {len(POSES)} poses, {sheet.shape[1]}x{sheet.shape[0]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
