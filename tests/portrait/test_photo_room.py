"""Faces are found, refused or warned of, with numbers; memory comes back."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import psutil
import pytest
from PIL import ExifTags, Image, ImageDraw

from talking_avatar.assets import portrait_path
from talking_avatar.engine.base import Photo
from talking_avatar.engine.portrait.examine import yaw_deg
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.landmarks import FaceMesh
from talking_avatar.engine.portrait.room import PhotoRoom
from talking_avatar.errors import (
    FaceTooSmall,
    FaceTurned,
    NoFace,
    PhotoError,
    SeveralFaces,
    UnreadableImage,
)

BACKGROUND = (38, 40, 44)
ImageArray = npt.NDArray[np.uint8]

MOUTH_LEFT, MOUTH_RIGHT = 61, 291


@pytest.fixture(scope="module")
def room() -> PhotoRoom:
    return PhotoRoom()


@pytest.fixture(scope="module")
def hopper() -> ImageArray:
    return np.asarray(Image.open(portrait_path()).convert("RGB"))


def prepare(room: PhotoRoom, photo: Photo, face: int | None = None) -> FramedPhoto:
    return room.prepare(photo, width=352, height=544, background=BACKGROUND, face=face)


def side_by_side(*photos: ImageArray) -> ImageArray:
    height = max(photo.shape[0] for photo in photos)
    wall = [
        np.pad(p, ((height - p.shape[0], 0), (0, 0), (0, 0)), constant_values=120) for p in photos
    ]
    return np.concatenate(wall, axis=1)


def shrunk(photo: ImageArray, factor: float) -> ImageArray:
    size = round(photo.shape[1] * factor), round(photo.shape[0] * factor)
    return np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.LANCZOS))


# --- accepted


def test_the_bundled_portrait(room: PhotoRoom) -> None:
    framed = room.prepare(portrait_path(), width=704, height=1088, background=BACKGROUND)
    assert framed.image.shape == (1088, 704, 3)
    assert framed.image.dtype == np.uint8
    assert framed.landmarks.shape == (468, 3)
    assert framed.landmarks.dtype == np.float32
    assert framed.mask.shape == (1088, 704)
    assert framed.mask.dtype == np.float32
    assert framed.warnings == ()
    assert framed.eyes_visible
    assert abs(framed.yaw_deg) < 5
    # Her face, cap and collar are the person; the blue wall is not.
    x, y = framed.landmarks[:, 0].mean(), framed.landmarks[:, 1].mean()
    assert framed.mask[int(y), int(x)] > 0.95
    assert framed.mask[1050, 352] > 0.9
    assert framed.mask[100, 680] < 0.1


@pytest.mark.parametrize(
    ("name", "warnings"),
    [
        ("portrait-1.jpg", []),
        ("portrait-2.jpg", []),
        ("portrait-3.jpg", []),
        ("portrait-4.jpg", []),
        ("portrait-beard.jpg", []),
        ("portrait-open-smile.jpg", []),
        ("hard-sunglasses.jpg", ["turned", "sunglasses"]),
    ],
)
def test_portraits(room: PhotoRoom, portraits: Path, name: str, warnings: list[str]) -> None:
    framed = prepare(room, portraits / name)
    assert [warning.code for warning in framed.warnings] == warnings
    assert framed.eyes_visible == ("sunglasses" not in warnings)


def test_a_rotated_phone_photo_is_the_same_character(
    room: PhotoRoom, hopper: ImageArray, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    stored = Image.fromarray(hopper).transpose(Image.Transpose.ROTATE_90)
    path = tmp_path / "phone.png"
    stored.save(path, exif=exif)
    phone, upright = prepare(room, path), prepare(room, hopper)
    # Rows are averaged before columns or after, which may round differently.
    np.testing.assert_allclose(phone.image.astype(int), upright.image, atol=2)
    np.testing.assert_allclose(phone.landmarks, upright.landmarks, atol=0.5)


@pytest.mark.parametrize("quarter_turns", [1, 2, 3])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_photo_on_its_side_or_head_is_turned_with_a_warning(
    room: PhotoRoom, hopper: ImageArray, tmp_path: Path, quarter_turns: int, orientation: int
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / "lying.png"
    Image.fromarray(np.rot90(hopper, quarter_turns)).save(path, exif=exif)
    lying = prepare(room, path)
    clockwise_already = quarter_turns - (1 if orientation == 6 else 0)
    assert [w.code for w in lying.warnings] == ["rotated"] * (clockwise_already != 0)
    upright = prepare(room, hopper)
    np.testing.assert_allclose(lying.image.astype(int), upright.image, atol=2)
    np.testing.assert_allclose(lying.landmarks, upright.landmarks, atol=0.5)


def test_a_tilted_head_stays_tilted(room: PhotoRoom, hopper: ImageArray) -> None:
    turn = cv2.getRotationMatrix2D((256, 220), -20, 1)
    tilted = cv2.warpAffine(hopper, turn, (512, 600), borderMode=cv2.BORDER_REFLECT)
    framed = prepare(room, np.asarray(tilted, np.uint8))
    across = framed.landmarks[MOUTH_RIGHT] - framed.landmarks[MOUTH_LEFT]
    assert np.degrees(np.arctan2(across[1], across[0])) == pytest.approx(20, abs=3)
    assert framed.yaw_deg == pytest.approx(0, abs=6)


def test_landmarks_are_where_the_face_is_in_the_frame(room: PhotoRoom, hopper: ImageArray) -> None:
    # The same photo, mirrored, must give mirrored points.
    plain, mirrored = prepare(room, hopper), prepare(room, hopper[:, ::-1])
    width = plain.image.shape[1]
    mouth = plain.landmarks[[MOUTH_LEFT, MOUTH_RIGHT], :2]
    other = mirrored.landmarks[[MOUTH_RIGHT, MOUTH_LEFT], :2]
    np.testing.assert_allclose([width, 0] + other * [-1, 1], mouth, atol=4)


# --- refused


def test_no_face(room: PhotoRoom) -> None:
    rng = np.random.default_rng(0)
    wall = np.full((800, 600, 3), 190, np.uint8)
    noise = rng.integers(0, 256, (800, 600, 3), dtype=np.uint8)
    for photo in (wall, noise):
        with pytest.raises(NoFace, match="no human face was found"):
            prepare(room, photo)


def cartoon(skin: tuple[int, int, int]) -> ImageArray:
    """Draw a face good enough that the detector and the mesh are sure of it."""
    image = Image.new("RGB", (600, 800), (120, 180, 240))
    draw = ImageDraw.Draw(image)
    draw.ellipse((120, 150, 480, 620), fill=skin, outline=0, width=6)
    draw.chord((120, 120, 480, 400), 180, 360, fill=(80, 40, 0))
    draw.ellipse((140, 250, 460, 600), fill=skin)
    for x in (210, 330):
        draw.ellipse((x, 300, x + 60, 360), fill="white", outline=0, width=4)
        draw.ellipse((x + 18, 315, x + 42, 345), fill=0)
        draw.arc((x - 20, 260, x + 80, 320), 200, 340, fill=0, width=6)
    draw.arc((220, 430, 380, 540), 20, 160, fill=(200, 0, 0), width=10)
    draw.line((300, 360, 290, 430, 310, 430), fill=0, width=4)
    return np.asarray(image)


@pytest.mark.parametrize("skin", [(255, 220, 180), (240, 200, 160), (255, 220, 0)])
def test_a_drawing_is_refused(room: PhotoRoom, skin: tuple[int, int, int]) -> None:
    drawing = cartoon(skin)
    rows, columns = np.mgrid[:800, :600]
    light = 1.05 - 0.35 * np.hypot((columns - 240) / 300, (rows - 300) / 400)
    shaded = np.clip(drawing * light[..., None], 0, 255).astype(np.uint8)
    as_jpeg = cv2.imencode(".jpg", drawing[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 70])[1].tobytes()
    for photo in (drawing, shaded, as_jpeg):
        with pytest.raises(NoFace, match="looks drawn"):
            prepare(room, photo)


def test_a_bad_photo_is_not_a_drawing(room: PhotoRoom, hopper: ImageArray) -> None:
    blurred = np.asarray(cv2.GaussianBlur(hopper, (0, 0), 4), np.uint8)
    dark = (hopper * 0.18).astype(np.uint8)
    compressed = cv2.imencode(".jpg", hopper[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 10])[1]
    for photo in (blurred, dark, compressed.tobytes()):
        assert prepare(room, photo).warnings == ()


def test_several_faces_and_the_choice(room: PhotoRoom, hopper: ImageArray) -> None:
    smaller = shrunk(hopper, 0.8)
    both = side_by_side(smaller, hopper)
    with pytest.raises(SeveralFaces, match=r"2 faces were found.*face=0.*face=1") as raised:
        prepare(room, both)
    first, second = raised.value.boxes
    assert (first.index, second.index) == (0, 1)
    assert first.width * first.height > second.width * second.height
    assert 400 < first.left < first.left + first.width < 930
    assert 0 < second.left < second.left + second.width < 410
    assert second.width == pytest.approx(0.8 * first.width, rel=0.1)
    alone, chosen = prepare(room, smaller), prepare(room, both, face=1)
    assert chosen.landmarks[:, 1].mean() == pytest.approx(alone.landmarks[:, 1].mean(), abs=40)
    with pytest.raises(ValueError, match=r"face=2, but the photo has faces 0 to 1"):
        prepare(room, both, face=2)


def test_a_passer_by_is_not_a_second_choice(room: PhotoRoom, hopper: ImageArray) -> None:
    photo = side_by_side(shrunk(hopper, 0.4), hopper)
    framed = prepare(room, photo)
    assert framed.warnings == ()
    with pytest.raises(FaceTooSmall):
        prepare(room, photo, face=1)


def test_a_small_face(room: PhotoRoom, hopper: ImageArray) -> None:
    with pytest.raises(FaceTooSmall, match=r"is \d+ px tall.* needs 120: use a larger") as raised:
        prepare(room, shrunk(hopper, 0.5))
    assert raised.value.face_px == pytest.approx(101, abs=4)
    assert raised.value.minimum_px == 120
    assert prepare(room, shrunk(hopper, 0.65)).warnings == ()


def test_a_small_face_in_a_large_photo_is_found(room: PhotoRoom, hopper: ImageArray) -> None:
    # 201 px of 3,000: the detector alone, which sees 128x128, would get 9.
    photo = np.full((3000, 2400, 3), 120, np.uint8)
    photo[1900:2500, 1600:2112] = hopper
    framed = prepare(room, photo)
    assert framed.warnings == ()
    across = np.linalg.norm(framed.landmarks[MOUTH_RIGHT] - framed.landmarks[MOUTH_LEFT])
    alone = prepare(room, hopper)
    as_wide = np.linalg.norm(alone.landmarks[MOUTH_RIGHT] - alone.landmarks[MOUTH_LEFT])
    assert across == pytest.approx(0.85 * as_wide, rel=0.1), "framed wider, as there is room"


def test_a_turned_head(room: PhotoRoom, portraits: Path) -> None:
    with pytest.raises(FaceTurned, match=r"41 degrees to the right.*at most 35") as raised:
        prepare(room, portraits / "hard-turned.jpg")
    assert raised.value.yaw_deg == pytest.approx(41, abs=3)
    assert raised.value.limit_deg == 35
    mirrored = np.asarray(Image.open(portraits / "hard-turned.jpg"))[:, ::-1]
    with pytest.raises(FaceTurned, match="to the left of the picture") as raised:
        prepare(room, mirrored)
    assert raised.value.yaw_deg == pytest.approx(-41, abs=4)


@pytest.mark.parametrize("degrees", [-30, -10, 0, 15, 45])
def test_yaw_of_a_turned_mesh(room: PhotoRoom, hopper: ImageArray, degrees: float) -> None:
    points = prepare(room, hopper).landmarks
    angle = np.radians(degrees)
    # Nose (toward the camera, -z) to the right (+x).
    turn = np.array(
        [[np.cos(angle), 0, -np.sin(angle)], [0, 1, 0], [np.sin(angle), 0, np.cos(angle)]]
    )
    turned = (points @ turn.T).astype(np.float32)
    assert yaw_deg(turned) - yaw_deg(points) == pytest.approx(degrees, abs=0.5)
    nose = 1
    moved = (
        turned[nose, 0]
        - turned[[234, 454], 0].mean()
        - (points[nose, 0] - points[[234, 454], 0].mean())
    )
    assert np.sign(moved) == np.sign(degrees)


def test_a_face_cut_by_the_edge(room: PhotoRoom, hopper: ImageArray) -> None:
    chin = 320
    with pytest.raises(NoFace, match="cut off by the edge"):
        prepare(room, hopper[: chin - 40])
    framed = prepare(room, hopper[:, 205:])
    assert [warning.code for warning in framed.warnings] == ["cut_off"]


def test_drawn_sunglasses_are_noticed(room: PhotoRoom, hopper: ImageArray) -> None:
    points, _ = FaceMesh().landmarks(hopper)
    lenses = hopper.copy()
    for outer, inner in ((33, 133), (263, 362)):
        center = points[[outer, inner], :2].mean(axis=0)
        half = np.linalg.norm(points[outer, :2] - points[inner, :2])
        mask = np.zeros(hopper.shape[:2], np.uint8)
        axes = round(float(half * 1.1)), round(float(half * 0.9))
        cv2.ellipse(
            mask, (round(float(center[0])), round(float(center[1] + 4))), axes, 0, 0, 360, 1, -1
        )
        lenses[mask > 0] = (lenses[mask > 0] * 0.15).astype(np.uint8)
    framed = prepare(room, lenses)
    assert [warning.code for warning in framed.warnings] == ["sunglasses"]
    assert not framed.eyes_visible
    assert "% as bright as the cheeks" in framed.warnings[0].message


# --- networks


def test_mesh_of_a_frame_is_that_of_the_photo_room(room: PhotoRoom, hopper: ImageArray) -> None:
    framed = prepare(room, hopper)
    points, score = FaceMesh().landmarks(framed.image)
    assert score > 0.99
    assert np.abs(points - framed.landmarks).max() < 0.02 * framed.image.shape[0]
    with pytest.raises(LookupError, match="no face in an image of 200x300"):
        FaceMesh().landmarks(np.zeros((300, 200, 3), np.uint8))


def test_opencv_threads_of_the_caller_are_left_as_they_are(room: PhotoRoom) -> None:
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(3)
        prepare(room, portrait_path())
        with pytest.raises(NoFace):
            prepare(room, np.zeros((200, 200, 3), np.uint8))
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


# --- memory

LARGE_PHOTO = """
import sys
from pathlib import Path
from talking_avatar.engine.portrait.room import PhotoRoom
def peak():
    # Not getrusage: there a process begins with the peak of the one that started it.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
room = PhotoRoom()
framed = room.prepare(sys.argv[1], width=704, height=1088, background=(0, 0, 0))
print(peak())
framed.image.tofile(sys.argv[2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_48_megapixel_photo(room: PhotoRoom, hopper: ImageArray, tmp_path: Path) -> None:
    # Enlarged so that its detail is known: the frame must be the same as from the original.
    wide = np.pad(hopper, ((40, 43), (0, 0), (0, 0)), mode="reflect")[:, :]
    large = Image.fromarray(wide).resize((6000, 8000), Image.Resampling.BICUBIC)
    large.save(tmp_path / "large.jpg", quality=95, subsampling=0)
    del large
    done = subprocess.run(
        [sys.executable, "-c", LARGE_PHOTO, str(tmp_path / "large.jpg"), str(tmp_path / "frame")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert float(done.stdout) < 400, "MiB: 192 for the photo, 70 for the interpreter's libraries"
    frame = np.fromfile(tmp_path / "frame", np.uint8).reshape(1088, 704, 3)
    small = np.asarray(Image.fromarray(wide).resize((6000 // 8, 1000), Image.Resampling.BICUBIC))
    reference = room.prepare(small, width=704, height=1088, background=(0, 0, 0))
    scale = np.ptp(frame[..., 1].astype(float))
    assert np.abs(frame.astype(int) - reference.image).mean() < 0.03 * scale


def test_memory_is_back_after_fifty_bad_photos(room: PhotoRoom, hopper: ImageArray) -> None:
    # Five kept photos of a megapixel would take 30 MB, decoded and as an overview.
    photo = portrait_path().read_bytes()
    broken: list[bytes] = [
        b"",
        b"not a photo" * 1000,
        *(photo[:n] for n in range(50, 60_000, 12_000)),
    ]
    wall = cv2.imencode(".png", np.full((1500, 1200, 3), 190, np.uint8))[1].tobytes()
    crowd = np.pad(side_by_side(hopper, hopper), ((0, 400), (0, 0), (0, 0)))
    bad: list[tuple[Photo, type[PhotoError]]] = [
        *((photo, UnreadableImage) for photo in broken),
        (wall, NoFace),
        (crowd, SeveralFaces),
        (cartoon((255, 220, 180)), NoFace),
    ]

    def a_round() -> None:
        for photo, refusal in bad:
            with pytest.raises(refusal):
                prepare(room, photo)

    def rss_mb() -> float:
        gc.collect()
        return psutil.Process().memory_info().rss / 1e6

    a_round()
    prepare(room, portrait_path())
    before = rss_mb()
    assert len(bad) == 10
    for _ in range(5):
        a_round()
    assert prepare(room, portrait_path()).warnings == ()
    assert rss_mb() - before < 25
