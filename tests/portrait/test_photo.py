"""Any still image opens upright and in the right colors, or is refused with a reason."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import ExifTags, Image, ImageCms, ImageOps

from talking_avatar.assets import portrait_path
from talking_avatar.engine.portrait.photo import MAX_PIXELS, Region, open_photo
from talking_avatar.errors import UnreadableImage

BACKGROUND = (10, 200, 30)
SIZE = 130
ImageArray = npt.NDArray[np.uint8]


def as_bytes(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(mode: str, color: object, size: int = SIZE) -> Image.Image:
    return Image.new(mode, (size, size), color)  # type: ignore[arg-type]


def color_of(photo: bytes) -> tuple[int, int, int]:
    pixels = open_photo(photo, BACKGROUND).read_all(SIZE)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (SIZE, SIZE, 3)
    spread = np.ptp(pixels.reshape(-1, 3).astype(int), axis=0)
    assert spread.max() <= 2, "a plain image must stay plain"
    red, green, blue = (int(x) for x in np.median(pixels.reshape(-1, 3), axis=0))
    return red, green, blue


def quadrants() -> Image.Image:
    """Red, green / blue, white; wider than high, so that a wrong turn shows in the size too."""
    pixels = np.zeros((160, 240, 3), np.uint8)
    pixels[:80, :120] = 255, 0, 0
    pixels[:80, 120:] = 0, 255, 0
    pixels[80:, :120] = 0, 0, 255
    pixels[80:, 120:] = 255, 255, 255
    return Image.fromarray(pixels)


def with_orientation(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return as_bytes(image, exif=exif)


# --- upright


def test_phone_photo_is_shown_upright() -> None:
    # Orientation 6: the camera was held so that the stored image must be turned clockwise.
    pixels = open_photo(with_orientation(quadrants(), 6), BACKGROUND).read_all(1000)
    assert pixels.shape == (240, 160, 3)
    assert pixels[0, 0].tolist() == [0, 0, 255]
    assert pixels[0, -1].tolist() == [255, 0, 0]
    assert pixels[-1, 0].tolist() == [255, 255, 255]
    assert pixels[-1, -1].tolist() == [0, 255, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_and_every_part_of_it(orientation: int) -> None:
    rng = np.random.default_rng(orientation)
    stored = Image.fromarray(rng.integers(0, 256, (150, 220, 3), dtype=np.uint8))
    photo = with_orientation(stored, orientation)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(photo))))
    image = open_photo(photo, BACKGROUND)
    assert (image.width, image.height) == upright.shape[1::-1]
    np.testing.assert_array_equal(image.read_all(1000), upright)
    part = image.read(Region(left=20, top=35, width=64, height=48), 64, 48)
    np.testing.assert_array_equal(part, upright[35:83, 20:84])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turn_on_top_of_the_orientation(orientation: int) -> None:
    rng = np.random.default_rng(orientation)
    stored = Image.fromarray(rng.integers(0, 256, (150, 220, 3), dtype=np.uint8))
    image = open_photo(with_orientation(stored, orientation), BACKGROUND)
    upright = image.read_all(1000)
    image.turn(1)
    assert (image.width, image.height) == upright.shape[:2]
    np.testing.assert_array_equal(image.read_all(1000), np.rot90(upright))
    part = image.read(Region(left=20, top=35, width=64, height=48), 64, 48)
    np.testing.assert_array_equal(part, np.rot90(upright)[35:83, 20:84])
    image.turn(3)
    np.testing.assert_array_equal(image.read_all(1000), upright)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_damaged_exif_leaves_the_photo_as_stored() -> None:
    photo = as_bytes(quadrants(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage")
    assert open_photo(photo, BACKGROUND).read_all(1000).shape == (160, 240, 3)


# --- colors


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("rgb", plain("RGB", (200, 100, 50)), (200, 100, 50)),
        ("gray", plain("L", 77), (77, 77, 77)),
        ("one bit", plain("1", 1), (255, 255, 255)),
        ("palette", plain("RGB", (200, 100, 50)).quantize(4), (200, 100, 50)),
        ("opaque", plain("RGBA", (200, 100, 50, 255)), (200, 100, 50)),
        ("transparent", plain("RGBA", (200, 100, 50, 0)), BACKGROUND),
        ("half transparent", plain("RGBA", (200, 100, 50, 51)), (48, 180, 34)),
        ("gray with alpha", plain("LA", (250, 51)), (58, 210, 74)),
        ("16 bit gray", Image.fromarray(np.full((SIZE, SIZE), 25_700, np.uint16)), (100,) * 3),
    ],
)
def test_colors_of_png(name: str, image: Image.Image, expected: tuple[int, int, int]) -> None:
    assert color_of(as_bytes(image)) == pytest.approx(expected, abs=1), name


def test_palette_with_a_transparent_entry() -> None:
    image = plain("P", 0)
    image.putpalette([200, 100, 50, 0, 0, 0])
    assert color_of(as_bytes(image, transparency=0)) == BACKGROUND
    assert color_of(as_bytes(image, transparency=1)) == (200, 100, 50)


def test_edge_of_transparency_keeps_the_color_of_what_is_seen() -> None:
    # The hidden half is white: were it averaged in, the edge would turn pale.
    pixels = np.zeros((200, 200, 4), np.uint8)
    pixels[:, :100] = 200, 0, 0, 255
    pixels[:, 100:, :3] = 255
    read = open_photo(as_bytes(Image.fromarray(pixels)), (0, 0, 0)).read_all(50)
    assert read[:, :, 1:].max() <= 1
    assert read[25, 10].tolist() == [200, 0, 0]


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (32_896, 128), (65_535, 255)])
def test_16_bit_color(value: int, expected: int) -> None:
    encoded = cv2.imencode(".png", np.full((SIZE, SIZE, 3), value, np.uint16))[1].tobytes()
    assert color_of(encoded) == (expected,) * 3


def test_float_tiff_of_zero_to_one() -> None:
    pixels = np.full((SIZE, SIZE), 0.5, np.float32)
    pixels[0, 0] = np.nan
    read = open_photo(as_bytes(Image.fromarray(pixels), "TIFF"), BACKGROUND).read_all(SIZE)
    assert read[60, 60].tolist() == pytest.approx([128] * 3, abs=1)


@pytest.mark.parametrize(
    ("ink", "expected"),
    [
        ((0, 255, 255, 0), (255, 0, 0)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((0, 0, 0, 0), (255, 255, 255)),
    ],
)
def test_cmyk_jpeg(ink: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    photo = as_bytes(plain("CMYK", ink), "JPEG", quality=95)
    assert color_of(photo) == pytest.approx(expected, abs=3)


def test_lab_tiff() -> None:
    # L 54.3, a 81, b 70 (Pillow counts a and b from 128) is the red of sRGB, seen under D50.
    image = Image.merge("LAB", [plain("L", 138), plain("L", 128 + 81), plain("L", 128 + 70)])
    assert color_of(as_bytes(image, "TIFF")) == pytest.approx((255, 0, 0), abs=8)


def srgb_profile_with(swap: tuple[bytes, bytes] | None = None) -> bytes:
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    if swap:
        tags = profile[: 128 + 4 + 12 * struct.unpack(">I", profile[128:132])[0]]
        first, second = (tags.index(name, 128) for name in swap)
        profile[first : first + 4], profile[second : second + 4] = swap[1], swap[0]
    return bytes(profile)


def test_a_color_profile_is_obeyed() -> None:
    # A profile whose red primary is sRGB's blue and the other way round.
    profile = srgb_profile_with(swap=(b"rXYZ", b"bXYZ"))
    photo = as_bytes(plain("RGB", (250, 40, 10)), icc_profile=profile)
    assert color_of(photo) == pytest.approx((10, 40, 250), abs=1)
    transparent = as_bytes(plain("RGBA", (250, 40, 10, 0)), icc_profile=profile)
    assert color_of(transparent) == BACKGROUND


def test_the_srgb_profile_changes_nothing() -> None:
    photo = as_bytes(plain("RGB", (250, 40, 10)), icc_profile=srgb_profile_with())
    assert color_of(photo) == pytest.approx((250, 40, 10), abs=1)


@pytest.mark.parametrize(
    "profile",
    [b"not a profile", ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()],
    ids=["garbage", "of another color space"],
)
def test_a_profile_that_cannot_be_used_counts_as_none(profile: bytes) -> None:
    photo = as_bytes(plain("RGB", (250, 40, 10)), icc_profile=profile)
    assert color_of(photo) == (250, 40, 10)


# --- kinds of input


def test_path_bytes_and_array_are_the_same_photo() -> None:
    path = portrait_path()
    pixels = open_photo(path, BACKGROUND).read_all(1000)
    assert pixels.shape == (600, 512, 3)
    np.testing.assert_array_equal(open_photo(str(path), BACKGROUND).read_all(1000), pixels)
    np.testing.assert_array_equal(open_photo(path.read_bytes(), BACKGROUND).read_all(1000), pixels)
    np.testing.assert_array_equal(open_photo(pixels, BACKGROUND).read_all(1000), pixels)
    turned = np.rot90(pixels)  # not contiguous
    np.testing.assert_array_equal(open_photo(turned, BACKGROUND).read_all(1000), turned)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"])
def test_common_formats(kind: str) -> None:
    # Animated formats give their first image.
    photo = as_bytes(plain("RGB", (200, 100, 50)), kind, lossless=True)
    color = color_of(photo)
    assert color == pytest.approx((200, 100, 50), abs=3)


def test_a_heic_photo_of_a_phone() -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    photo = as_bytes(quadrants(), "HEIF", exif=exif.tobytes(), quality=100)
    pixels = open_photo(photo, BACKGROUND).read_all(1000)
    assert pixels.shape == (240, 160, 3)
    assert pixels[20, 20].tolist() == pytest.approx([0, 0, 255], abs=6)
    assert pixels[-20, -20].tolist() == pytest.approx([0, 255, 0], abs=6)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((200, 200), np.uint8),
        np.zeros((200, 200, 4), np.uint8),
        np.zeros((200, 200, 3), np.float32),
    ],
    ids=["gray", "rgba", "float"],
)
def test_arrays_must_be_rgb_uint8(array: ImageArray) -> None:
    with pytest.raises(ValueError, match=r"must be RGB uint8 of shape \(H, W, 3\)"):
        open_photo(array, BACKGROUND)


# --- refusals


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


PORTRAIT = portrait_path().read_bytes()


@pytest.mark.parametrize(
    ("photo", "reason"),
    [
        (b"", "is empty"),
        (b"Dear customer, your photo is attached.\n" * 50, "is not an image in a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 500 500\n", "is not an image in a known"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC.*save it as JPEG"),
        (PORTRAIT[: len(PORTRAIT) // 2], "damaged.*truncated"),
        (PORTRAIT[:500], "damaged"),
        (PORTRAIT[:-3000], "damaged.*truncated"),
        (as_bytes(plain("RGB", 0, size=1)), "1x1 pixels; each side needs at least 120"),
        (png_that_claims(30_000, 30_000), "too large to open safely"),
        (png_that_claims(8_000, 8_000), "damaged"),
    ],
    ids=["empty", "text", "eps", "heic", "half", "head", "tail", "1x1", "bomb", "claims too much"],
)
def test_what_is_no_photo_is_refused_with_a_reason(photo: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImage, match=reason):
        open_photo(photo, BACKGROUND)


def test_files_that_are_no_photo(tmp_path: Path) -> None:
    letter = tmp_path / "face.jpg"
    letter.write_text("This is text.")
    with pytest.raises(UnreadableImage, match=r"face\.jpg' is not an image"):
        open_photo(letter, BACKGROUND)
    with pytest.raises(UnreadableImage, match=r"none\.jpg' cannot be read: No such file"):
        open_photo(tmp_path / "none.jpg", BACKGROUND)
    with pytest.raises(UnreadableImage, match="cannot be read: Is a directory"):
        open_photo(tmp_path, BACKGROUND)


def test_an_array_has_the_same_limits() -> None:
    with pytest.raises(UnreadableImage, match="119x500 pixels; each side needs at least 120"):
        open_photo(np.zeros((500, 119, 3), np.uint8), BACKGROUND)
    wide = np.broadcast_to(np.zeros(3, np.uint8), (8_000, MAX_PIXELS // 8_000 + 1, 3))
    with pytest.raises(UnreadableImage, match="at most 80 million are opened: make it smaller"):
        open_photo(wide, BACKGROUND)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_damage_gives_an_image_or_unreadable_image() -> None:
    rng = np.random.default_rng(0)
    originals = [PORTRAIT] + [
        as_bytes(Image.open(portrait_path()).resize((160, 180)), kind)
        for kind in ("PNG", "WEBP", "TIFF", "GIF", "BMP")
    ]
    refused = 0
    for i in range(180):
        photo = bytearray(originals[i % len(originals)])
        for at in rng.integers(0, min(len(photo), 4_000), rng.integers(1, 30)):
            photo[at] = rng.integers(0, 256)
        try:
            open_photo(bytes(photo), BACKGROUND).read_all(100)
        except UnreadableImage:
            refused += 1
    assert 20 < refused < 180


BOMB_IN_LITTLE_MEMORY = """
import resource, sys
from talking_avatar.engine.portrait.photo import open_photo
from talking_avatar.errors import UnreadableImage
photo = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    open_photo(photo, (0, 0, 0))
except UnreadableImage as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory in Linux's way")
def test_a_bomb_is_refused_within_64_mb() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB_IN_LITTLE_MEMORY],
        input=png_that_claims(30_000, 30_000),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"too large to open safely" in done.stdout


# --- large photos


def test_reducing_loses_nothing_that_the_size_can_show() -> None:
    # Lines of the finest pitch that 1/10 of the size can hold, and ten times finer ones.
    coarse = np.tile(np.repeat(np.array([0, 255], np.uint8), 20), 40)
    fine = np.tile(np.array([0, 255], np.uint8), 800)
    photo = np.repeat(
        np.vstack([np.tile(coarse, (800, 1)), np.tile(fine, (800, 1))])[..., None], 3, 2
    )
    read = open_photo(photo, BACKGROUND).read_all(160)
    lines = read[10:70, 10:150, 0].astype(int)
    assert np.abs(np.diff(lines.mean(axis=0)[::2])).mean() > 200, "fine detail is still there"
    assert np.ptp(read[90:150, 10:150, 0].astype(int)) <= 4, "finer detail must not alias"
    assert read[120, 80, 0] == pytest.approx(127.5, abs=2)
