"""Opens any still image, safely.

Takes: a path, the bytes of an image file, or an RGB array. Gives: a `StillImage`, of which any
part can be read, upright, in sRGB, at any size.
Never: looks for faces, or keeps more than one full-size copy.

Pillow decodes, because it reads EXIF, color profiles, CMYK and transparency, and refuses a bomb
from its header. Only formats whose decoders are plain libraries are let in (not EPS, which starts a
program). Memory: 4 bytes a pixel of the photo, 8 with transparency, plus what is read from it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, cast

import cv2
import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError

from talking_avatar.engine.base import Photo
from talking_avatar.errors import UnreadableImage

MAX_PIXELS = 80_000_000
"""Just below the count at which Pillow itself warns; 320 MB while the photo is read."""
MIN_SIDE_PX = 120
"""A photo with a shorter side cannot hold a face that is large enough."""
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "HEIF")
"""HEIF (iPhones) only with the extra ``heic``, or any decoder that is registered with Pillow."""

RGB = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangle of the upright photo, in pixels; edges may lie between two pixels."""

    left: float
    top: float
    width: float
    height: float


class StillImage:
    """A decoded photo, kept as it was stored; turned and converted part by part, when read.

    Attributes:
        width, height: Of the upright photo.
    """

    def __init__(self, image: Image.Image, background: RGB, orientation: int = 1) -> None:
        self._image = image
        self._background = background
        self._turn = _Turn(orientation)
        self._to_srgb = _profile_conversion(image)
        self.width, self.height = self._turn.upright_size(*image.size)

    def read(self, region: Region, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Read a part of the photo.

        Args:
            region: What to read; must lie inside the photo.
            width: Pixels to give it. Reductions average all pixels (Lanczos), so that nothing
                that the size can show is lost.
            height: The same, down.

        Returns:
            uint8 sRGB (height, width, 3), transparency laid over the background.
        """
        box = self._turn.stored_box(region, *self._image.size)
        size = self._turn.stored_size(width, height)
        part = self._image.resize(size, Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
        alpha = part.getchannel("A") if part.mode in ("RGBA", "LA") else None
        color = self._to_srgb(part.convert(part.mode[:-1]) if alpha else part)
        if alpha:
            plain = Image.new("RGB", color.size, self._background)
            plain.paste(color, mask=alpha)
            color = plain
        return np.array(self._turn.upright(color))

    def turn(self, quarter_turns: int) -> None:
        """Turn the photo counterclockwise, on top of what its EXIF says; nothing is copied."""
        for _ in range(quarter_turns % 4):
            self._turn = self._turn.turned()
        self.width, self.height = self._turn.upright_size(*self._image.size)

    def read_all(self, max_side: int) -> npt.NDArray[np.uint8]:
        """Read the whole photo, reduced so that no side is longer than ``max_side``."""
        scale = min(1.0, max_side / max(self.width, self.height))
        width, height = max(1, round(self.width * scale)), max(1, round(self.height * scale))
        return self.read(Region(0, 0, self.width, self.height), width, height)


def open_photo(photo: Photo, background: RGB) -> StillImage:
    """Decode a photo.

    Args:
        photo: A path, the bytes of an image file, or RGB uint8 (H, W, 3).
        background: RGB laid under transparent pixels.

    Raises:
        UnreadableImage: Not an image, broken, too large or too small; the text says which.
        ValueError: An array that is not uint8 (H, W, 3).
    """
    if isinstance(photo, np.ndarray):
        return StillImage(_from_array(photo), background)
    name = "photo" if isinstance(photo, bytes) else f"photo {os.fspath(photo)!r}"
    try:
        with io.BytesIO(photo) if isinstance(photo, bytes) else Path(photo).open("rb") as file:
            image, orientation = _decode(file, name)
            return StillImage(image, background, orientation)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableImage(f"{name} cannot be read: {reason}") from error


def _from_array(array: npt.NDArray[np.uint8]) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(
            f"photo array must be RGB uint8 of shape (H, W, 3), not {array.dtype} {array.shape}"
        )
    _check_size("photo", array.shape[1], array.shape[0])
    return Image.fromarray(np.ascontiguousarray(array))


def _decode(file: BinaryIO, name: str) -> tuple[Image.Image, int]:
    """The image in a mode that can be averaged, and its EXIF orientation."""
    try:
        image = _open(file)
        _check_size(name, *image.size)
        image.load()
        return _resizable(image), _orientation(image)
    except (UnreadableImage, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage(f"{name} {_what_it_is(file)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableImage(f"{name} is too large to open safely: {error}") from error
    except Exception as error:  # broken files make Pillow's decoders raise nearly anything
        raise UnreadableImage(f"{name} is damaged and cannot be decoded: {error}") from error


def _open(file: BinaryIO) -> Image.Image:
    Image.init()
    if "HEIF" not in Image.OPEN:
        with suppress(ImportError):
            import_module("pillow_heif").register_heif_opener()
    return Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])


def _orientation(image: Image.Image) -> int:
    with suppress(Exception):  # damaged EXIF: the photo stays as it was stored
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


def _check_size(name: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise UnreadableImage(
            f"{name} has {width}x{height} pixels, {width * height / 1e6:.0f} million; "
            f"at most {MAX_PIXELS / 1e6:.0f} million are opened: make it smaller"
        )
    if min(width, height) < MIN_SIDE_PX:
        raise UnreadableImage(
            f"{name} has {width}x{height} pixels; each side needs at least {MIN_SIDE_PX}"
        )


def _what_it_is(file: BinaryIO) -> str:
    file.seek(0)
    head = file.read(32)
    if not head:
        return "is empty"
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"mif1", b"msf1"):
        return (
            "is a HEIC image, which cannot be opened: save it as JPEG, or install the decoder with "
            "pip install 'talking-avatar[heic]'"
        )
    return "is not an image in a known format: save it as JPEG or PNG"


def _resizable(image: Image.Image) -> Image.Image:
    """The same image in a mode that can be averaged: 8 bits, no palette."""
    match image.mode:
        case "RGB" | "RGBA" | "L" | "LA" | "CMYK" | "LAB":
            return image
        case "P" | "PA" if "transparency" in image.info or image.mode == "PA":
            plain = image.convert("RGBA")
        case "1":
            plain = image.convert("L")
        case "I" | "F" | "I;16" | "I;16B" | "I;16L" | "I;16N":
            plain = Image.fromarray(_to_8_bits(np.asarray(image)))
        case _:
            plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if "icc_profile" in image.info:
        plain.info["icc_profile"] = image.info["icc_profile"]
    return plain


def _to_8_bits(gray: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Gray of 16 bits, or wider in a TIFF, to 8. A wide one is taken by its own highest value."""
    if gray.dtype.kind == "u" and gray.dtype.itemsize == 2:
        gray, white = gray.astype(np.uint16, copy=False), 65_535.0
    else:
        gray = np.nan_to_num(gray.astype(np.float32))
        high = float(gray.max(initial=0))
        white = next((white for white in (1.0, 255.0, 65_535.0) if high <= white), high)
    scaled = cv2.convertScaleAbs(np.maximum(gray, 0), alpha=255 / white)
    return np.asarray(scaled, np.uint8)


def _profile_conversion(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """How to get from the photo's own colors to sRGB; a broken profile counts as none."""
    profile = image.info.get("icc_profile")
    mode = image.mode.removesuffix("A") if image.mode in ("RGBA", "LA") else image.mode
    source: ImageCms.ImageCmsProfile | None = None
    if mode == "LAB":
        source = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    elif profile:
        with suppress(OSError, ImageCms.PyCMSError):
            source = ImageCms.getOpenProfile(io.BytesIO(profile))
    if source is not None:
        with suppress(ImageCms.PyCMSError):
            transform = ImageCms.buildTransform(
                source,
                ImageCms.createProfile("sRGB"),
                mode,
                "RGB",
                ImageCms.Intent.RELATIVE_COLORIMETRIC,
                ImageCms.Flags.BLACKPOINTCOMPENSATION,
            )
            return lambda part: cast("Image.Image", ImageCms.applyTransform(part, transform))
    return lambda part: part.convert("RGB")


@dataclass(frozen=True, slots=True)
class _Turn:
    """EXIF orientation: 1 to 8; how the stored image must be turned to stand upright."""

    orientation: int

    @property
    def _swaps(self) -> bool:
        return self.orientation in (5, 6, 7, 8)

    def upright_size(self, width: int, height: int) -> tuple[int, int]:
        return (height, width) if self._swaps else (width, height)

    stored_size = upright_size

    def turned(self) -> _Turn:
        """This turn, and a quarter counterclockwise after it."""
        return _Turn({1: 8, 8: 3, 3: 6, 6: 1, 2: 5, 5: 4, 4: 7, 7: 2}.get(self.orientation, 8))

    def stored_box(
        self, region: Region, width: int, height: int
    ) -> tuple[float, float, float, float]:
        """Where a region of the upright photo lies in the stored one of ``width`` x ``height``."""
        x0, y0 = region.left, region.top
        x1, y1 = x0 + region.width, y0 + region.height
        if self._swaps:
            x0, y0, x1, y1 = y0, x0, y1, x1
        if self.orientation in (2, 3, 7, 8):
            x0, x1 = width - x1, width - x0
        if self.orientation in (3, 4, 6, 7):
            y0, y1 = height - y1, height - y0
        return max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1)

    def upright(self, image: Image.Image) -> Image.Image:
        method = {
            2: Image.Transpose.FLIP_LEFT_RIGHT,
            3: Image.Transpose.ROTATE_180,
            4: Image.Transpose.FLIP_TOP_BOTTOM,
            5: Image.Transpose.TRANSPOSE,
            6: Image.Transpose.ROTATE_270,
            7: Image.Transpose.TRANSVERSE,
            8: Image.Transpose.ROTATE_90,
        }.get(self.orientation)
        return image if method is None else image.transpose(method)
