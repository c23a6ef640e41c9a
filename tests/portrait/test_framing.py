"""Any photo is cut to any size around its face, never stretched, softly where it ends."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from talking_avatar.assets import portrait_path
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.framing import EYES_AT, FACE_SHARE, FacePlace, choose_crop, cut
from talking_avatar.engine.portrait.landmarks import FaceMesh
from talking_avatar.engine.portrait.photo import open_photo
from talking_avatar.engine.portrait.room import PhotoRoom

BACKGROUND = (38, 40, 44)
FOREHEAD, CHIN, EYE_LEFT, EYE_RIGHT = 10, 152, 33, 263


def shares(framed: FramedPhoto) -> tuple[float, float, float]:
    """Height of the face, height of the eyes, middle of the face: relative to the frame."""
    height, width = framed.image.shape[:2]
    points = framed.landmarks[:, :2]
    return (
        float(np.linalg.norm(points[FOREHEAD] - points[CHIN]) / height),
        float(points[[EYE_LEFT, EYE_RIGHT], 1].mean() / height),
        float((points[:, 0].min() + points[:, 0].max()) / 2 / width),
    )


def is_magenta(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    return (image[..., 0] > 250) & (image[..., 1] < 5) & (image[..., 2] > 250)


def test_with_room_the_face_is_where_a_photographer_puts_it() -> None:
    crop = choose_crop(FacePlace(x=2000, eyes_y=1500, height=400), 4000, 4000, 704, 1088)
    assert 400 * crop.scale / 1088 == pytest.approx(FACE_SHARE, abs=0.01)
    assert (1500 - crop.top) * crop.scale / 1088 == pytest.approx(EYES_AT, abs=0.01)
    assert (2000 - crop.left) * crop.scale / 704 == pytest.approx(0.5, abs=0.01)
    assert 0.33 < FACE_SHARE < 0.42
    assert 0.40 < EYES_AT < 0.5


@pytest.mark.parametrize(
    ("face", "photo"),
    [
        (FacePlace(x=250, eyes_y=1500, height=400), (4000, 4000)),
        (FacePlace(x=3700, eyes_y=1500, height=400), (4000, 4000)),
        (FacePlace(x=2000, eyes_y=380, height=400), (4000, 4000)),
        (FacePlace(x=2000, eyes_y=3400, height=400), (4000, 4000)),
        (FacePlace(x=320, eyes_y=360, height=480), (640, 960)),
    ],
    ids=["left", "right", "top", "bottom", "tight"],
)
def test_the_window_moves_or_narrows_before_background_shows(
    face: FacePlace, photo: tuple[int, int]
) -> None:
    crop = choose_crop(face, *photo, 704, 1088)
    assert crop.left >= 0
    assert crop.top >= 0
    assert crop.left + 704 / crop.scale <= photo[0] + 1e-6
    assert crop.top + 1088 / crop.scale <= photo[1] + 1e-6
    assert face.height * crop.scale / 1088 < 0.6


def test_a_narrow_frame_has_room_for_the_ears() -> None:
    crop = choose_crop(FacePlace(x=2000, eyes_y=2000, height=400), 4000, 4000, 320, 1280)
    assert 400 * crop.scale <= 0.75 * 320


@settings(max_examples=60, deadline=None)
@given(
    photo=st.tuples(st.integers(120, 3000), st.integers(120, 3000)),
    place=st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9), st.floats(0.1, 1.0)),
    size=st.tuples(st.integers(64, 640), st.integers(64, 640)),
)
def test_any_frame_of_any_photo(
    photo: tuple[int, int], place: tuple[float, float, float], size: tuple[int, int]
) -> None:
    width, height = 2 * size[0], 2 * size[1]
    face = FacePlace(place[0] * photo[0], place[1] * photo[1], max(60, place[2] * photo[1]))
    crop = choose_crop(face, *photo, width, height)
    across = (face.x - crop.left) * crop.scale / width
    eyes = (face.eyes_y - crop.top) * crop.scale / height
    assert 0.3 < across < 0.7
    assert 0.2 < eyes < 0.6
    assert 0 < face.height * crop.scale < height
    if width * height < 400_000:
        gray = np.full((photo[1], photo[0], 3), 200, np.uint8)
        frame = cut(open_photo(gray, BACKGROUND), crop, width, height, BACKGROUND)
        assert frame.shape == (height, width, 3)
        assert frame.max() <= 200


@pytest.mark.parametrize(("width", "height"), [(704, 1088), (1088, 704), (640, 640)])
def test_a_circle_stays_a_circle_where_it_belongs(width: int, height: int) -> None:
    photo = np.full((1500, 2100, 3), 255, np.uint8)
    cv2.circle(photo, (1300, 700), 150, (0, 0, 0), -1, cv2.LINE_AA)
    crop = choose_crop(FacePlace(x=1300, eyes_y=700, height=300), 2100, 1500, width, height)
    frame = cut(open_photo(photo, BACKGROUND), crop, width, height, BACKGROUND)
    rows, columns = np.nonzero(frame[..., 0] < 128)
    assert np.ptp(rows) + 1 == pytest.approx(300 * crop.scale, abs=2)
    assert np.ptp(columns) + 1 == pytest.approx(300 * crop.scale, abs=2)
    # The center of pixel 1300 is 1300.5 from the edge.
    assert columns.mean() + 0.5 == pytest.approx((1300.5 - crop.left) * crop.scale, abs=0.6)
    assert rows.mean() + 0.5 == pytest.approx((700.5 - crop.top) * crop.scale, abs=0.6)


def test_where_the_photo_ends_the_background_begins_softly() -> None:
    photo = np.full((400, 160, 3), 240, np.uint8)
    crop = choose_crop(FacePlace(x=80, eyes_y=180, height=210), 160, 400, 704, 704)
    frame = cut(open_photo(photo, BACKGROUND), crop, 704, 704, BACKGROUND)
    assert frame[352, 0].tolist() == list(BACKGROUND)
    assert frame[352, -1].tolist() == list(BACKGROUND)
    assert frame[352, 352].tolist() == [240, 240, 240]
    steps = np.diff(frame[352, :, 0].astype(int))
    assert np.abs(steps).max() < 12, "no hard edge"
    assert (steps[:352] >= 0).all()
    assert (steps[352:] <= 0).all()


def test_a_photo_of_the_frames_size_is_passed_through() -> None:
    # 400 x 600 with a face that fits as it is: no resampling, no blur, no shift.
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (600, 400, 3), dtype=np.uint8)
    crop = choose_crop(FacePlace(x=200, eyes_y=258, height=300), 400, 600, 400, 600)
    assert (crop.left, crop.top, crop.scale) == pytest.approx((0, 0, 1), abs=0.02)
    frame = cut(open_photo(photo, BACKGROUND), crop, 400, 600, BACKGROUND)
    assert np.abs(frame.astype(int) - photo).mean() < 6


@pytest.mark.parametrize(
    ("width", "height"), [(704, 1088), (352, 544), (1280, 720), (720, 1280), (512, 512), (128, 128)]
)
def test_the_bundled_portrait_in_any_size(width: int, height: int) -> None:
    framed = PhotoRoom().prepare(portrait_path(), width=width, height=height, background=BACKGROUND)
    assert framed.image.shape == (height, width, 3)
    assert framed.mask.shape == (height, width)
    face, eyes, across = shares(framed)
    # It is 512 px wide: a wide frame must come closer, or show background.
    assert 0.30 < face < (0.72 if width > height else 0.5)
    assert 0.33 < eyes < 0.48
    assert 0.45 < across < 0.55


@pytest.mark.parametrize("shape", ["square", "wide", "tall", "left edge", "right edge"])
def test_any_shape_of_photo_fills_the_frame(portraits: Path, shape: str) -> None:
    photo = np.asarray(Image.open(portraits / "portrait-open-smile.jpg"))
    photo = {
        "square": photo[20:660],
        "wide": np.pad(photo[80:780], ((0, 0), (500, 300), (0, 0)), mode="edge"),
        "tall": photo[:, 130:520],
        "left edge": photo[:, 90:],
        "right edge": photo[:, :560],
    }[shape]
    framed = PhotoRoom().prepare(photo, width=704, height=1088, background=(255, 0, 255))
    face, eyes, across = shares(framed)
    assert framed.warnings == ()
    assert 0.33 < face < 0.66
    assert 0.3 < eyes < 0.5
    assert 0.4 < across < 0.6
    assert not is_magenta(framed.image).any()


@pytest.mark.parametrize(
    "name",
    [
        "portrait-1.jpg",
        "portrait-2.jpg",
        "portrait-3.jpg",
        "portrait-4.jpg",
        "portrait-beard.jpg",
        "portrait-open-smile.jpg",
        "hard-sunglasses.jpg",
    ],
)
def test_portraits_fill_the_frame(portraits: Path, name: str) -> None:
    # They are as high as the frame is, so that none may be enlarged much or show background.
    framed = PhotoRoom().prepare(portraits / name, width=704, height=1088, background=(255, 0, 255))
    face, eyes, across = shares(framed)
    assert 0.33 < face < 0.63
    assert 0.32 < eyes < 0.45
    assert 0.45 < across < 0.55
    assert not is_magenta(framed.image).any()
    original = np.asarray(Image.open(portraits / name))
    face_px = face * 1088
    found, _ = FaceMesh().landmarks(original)
    enlarged = face_px / np.linalg.norm(found[FOREHEAD, :2] - found[CHIN, :2])
    assert enlarged < 1.7
