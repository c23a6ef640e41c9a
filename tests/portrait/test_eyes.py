"""Lids close, irises move, glasses stay."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from talking_avatar.engine.portrait.face import FaceState
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.landmarks import FaceMesh
from talking_avatar.engine.portrait.renderer import PortraitRenderer
from talking_avatar.engine.portrait.room import PhotoRoom

LIDS = {"left": (159, 145, 33, 133), "right": (386, 374, 362, 263)}

BROWS = {"left": 52, "right": 282}
"""A point of each brow's lower edge, above the middle of the eye."""
BROW_RIDGE = (70, 63, 105, 66, 107, 336, 296, 334, 293, 300)
Floats = npt.NDArray[np.floating]

OPENINGS = {
    "left": (33, 246, 161, 160, 159, 158, 157, 173, 133, 155, 154, 153, 145, 144, 163, 7),
    "right": (362, 398, 384, 385, 386, 387, 388, 466, 263, 249, 390, 373, 374, 380, 381, 382),
}


def frame_photo(path: Path) -> FramedPhoto:
    return PhotoRoom().prepare(path, width=352, height=544, background=(38, 40, 44))


@pytest.fixture(scope="module")
def photo(portraits: Path) -> FramedPhoto:
    return frame_photo(portraits / "portrait-2.jpg")


@pytest.fixture(scope="module")
def renderer(photo: FramedPhoto) -> PortraitRenderer:
    return PortraitRenderer(photo)


@pytest.fixture(
    scope="module",
    params=[
        "portrait-1",
        "portrait-2",
        "portrait-3",
        "portrait-4",
        "portrait-beard",
        "portrait-open-smile",
    ],
)
def any_photo(request: pytest.FixtureRequest, portraits: Path) -> FramedPhoto:
    return frame_photo(portraits / f"{request.param}.jpg")


@pytest.fixture(scope="module")
def any_renderer(any_photo: FramedPhoto) -> PortraitRenderer:
    return PortraitRenderer(any_photo)


def eye_box(photo: FramedPhoto, side: str) -> tuple[slice, slice]:
    left, right = photo.landmarks[list(LIDS[side][2:]), :2]
    middle, half = (left + right) / 2, np.linalg.norm(right - left) / 2
    return (
        slice(int(middle[1] - 0.5 * half), int(middle[1] + 0.5 * half)),
        slice(int(middle[0] - half), int(middle[0] + half)),
    )


def opening(photo: FramedPhoto, frame: npt.NDArray[np.uint8], side: str) -> float:
    """How far the lids are apart as the landmark model sees it, in eye widths."""
    points = FaceMesh().refit(frame, photo.landmarks).points[:, :2]
    top, bottom, left, right = points[list(LIDS[side])]
    return float(np.linalg.norm(bottom - top) / np.linalg.norm(right - left))


def iris_u(photo: FramedPhoto, frame: npt.NDArray[np.uint8], side: str) -> float:
    """Where the dark of the eye lies across its box, in pixels."""
    part = frame[eye_box(photo, side)].astype(float).mean(axis=2)
    dark = np.clip(np.percentile(part, 15) - part, 0, None)
    return float((dark.sum(axis=0) @ np.arange(part.shape[1])) / dark.sum())


def still_seen(photo: FramedPhoto, frame: npt.NDArray[np.uint8], side: str) -> float:
    """Share of the eye's opening that still shows the photo's own eye."""
    lids = photo.landmarks[list(OPENINGS[side]), :2].round().astype(np.int32)
    inside = cv2.fillPoly(np.zeros(frame.shape[:2], np.uint8), [lids], 1)
    inner = cv2.erode(inside, np.ones((3, 3), np.uint8)) > 0
    same = np.abs(frame.astype(int) - photo.image).max(axis=2) < 8
    return float(same[inner].mean())


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_blink_closes_the_eye(photo: FramedPhoto, renderer: PortraitRenderer, side: str) -> None:
    frames = [renderer.render(FaceState(blink_left=b, blink_right=b)) for b in (0.0, 0.5, 1.0)]
    seen = [still_seen(photo, frame, side) for frame in frames]
    assert seen[0] > 0.99
    assert 0.25 < seen[1] < 0.75
    assert seen[2] < 0.12
    # The landmark model hardly knows closed eyes; it must at least see them narrow.
    assert opening(photo, frames[2], side) < 0.8 * opening(photo, frames[0], side)


def test_each_eye_blinks_alone(photo: FramedPhoto, renderer: PortraitRenderer) -> None:
    wink = renderer.render(FaceState(blink_left=1.0)).astype(int)
    open_eyes = renderer.render(FaceState()).astype(int)
    changed = np.abs(wink - open_eyes)
    assert changed[eye_box(photo, "left")].mean() > 8
    assert changed[eye_box(photo, "right")].max() == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_glance_moves_the_iris(photo: FramedPhoto, renderer: PortraitRenderer, side: str) -> None:
    width = eye_box(photo, side)[1].stop - eye_box(photo, side)[1].start
    left, middle, right = (
        iris_u(photo, renderer.render(FaceState(gaze_x=x)), side) for x in (-1.0, 0.0, 1.0)
    )
    assert middle - left > 0.03 * width
    assert right - middle > 0.03 * width


def test_a_glance_moves_nothing_but_the_eye(photo: FramedPhoto, renderer: PortraitRenderer) -> None:
    glance = renderer.render(FaceState(gaze_x=1.0, gaze_y=0.5)).astype(int)
    straight = renderer.render(FaceState()).astype(int)
    changed = np.abs(glance - straight).max(axis=2)
    for side in LIDS:
        rows, columns = eye_box(photo, side)
        margin = (columns.stop - columns.start) // 8  # lids slide a little along themselves
        rows = slice(rows.start - margin, rows.stop + margin)
        changed[rows, columns.start - margin : columns.stop + margin] = 0
    assert changed.max() == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_iris_leaves_no_ghost(
    any_photo: FramedPhoto, any_renderer: PortraitRenderer, side: str
) -> None:
    """The dark of an eye is as large looking aside as looking straight: one iris, no more."""
    rows, columns = eye_box(any_photo, side)

    def darkness(gaze_x: float) -> float:
        part = any_renderer.render(FaceState(gaze_x=gaze_x))[rows, columns].astype(float)
        return float((255 - part.mean(axis=2)).sum())

    assert darkness(-1.0) == pytest.approx(darkness(0.0), rel=0.06)
    assert darkness(1.0) == pytest.approx(darkness(0.0), rel=0.06)


def lab_of(frame: npt.NDArray[np.uint8], center: npt.NDArray[np.float32], half: float) -> Floats:
    """Median color of a patch a third of an eye wide, in CIE Lab."""
    x, y = center
    rows = slice(int(y - 0.10 * half), int(y + 0.10 * half) + 1)
    columns = slice(int(x - 0.35 * half), int(x + 0.35 * half) + 1)
    lab = cv2.cvtColor(frame[rows, columns].astype(np.float32) / 255, cv2.COLOR_RGB2Lab)
    return np.asarray(np.median(lab.reshape(-1, 3), axis=0))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_closed_lid_has_the_color_of_the_skin_around(
    any_photo: FramedPhoto, any_renderer: PortraitRenderer, side: str
) -> None:
    """Delta E to the mean of the skin above and below: 0.5 to 7.9 seen; in hue alone 0.1 to 2.7."""
    frame = any_renderer.render(FaceState(blink_left=1.0, blink_right=1.0))
    top, bottom, left, right = any_photo.landmarks[list(LIDS[side]), :2]
    brow = any_photo.landmarks[BROWS[side], :2]
    half = float(np.linalg.norm(right - left)) / 2
    lid = lab_of(frame, 0.55 * top + 0.45 * bottom, half)
    below = lab_of(frame, bottom + np.array([0, 0.4 * half], np.float32), half)
    above = lab_of(frame, (top + brow) / 2, half)
    off = lid - (above + below) / 2
    assert np.linalg.norm(off) < 10
    assert np.linalg.norm(off[1:]) < 4


def test_a_blink_leaves_the_brow(any_photo: FramedPhoto, any_renderer: PortraitRenderer) -> None:
    blink = any_renderer.render(FaceState(blink_left=1.0, blink_right=1.0)).astype(int)
    still = any_renderer.render(FaceState()).astype(int)
    for index in BROW_RIDGE:
        x, y = any_photo.landmarks[index, :2].astype(int)
        assert np.abs(blink - still)[y - 2 : y + 3, x - 2 : x + 3].max() <= 2


def test_the_faintest_blink_hardly_shows(renderer: PortraitRenderer) -> None:
    faint = renderer.render(FaceState(blink_left=0.01, blink_right=0.01, gaze_x=0.005))
    change = np.abs(faint.astype(int) - renderer.render(FaceState()).astype(int))
    assert change.max() < 48  # a fifth of a pixel along the lashes
    assert change.mean() < 0.02


def test_eyes_behind_sunglasses_are_left_alone(portraits: Path) -> None:
    renderer = PortraitRenderer(frame_photo(portraits / "hard-sunglasses.jpg"))
    state = FaceState(blink_left=1.0, blink_right=1.0, gaze_x=1.0)
    assert np.array_equal(renderer.render(state), renderer.render(FaceState()))
