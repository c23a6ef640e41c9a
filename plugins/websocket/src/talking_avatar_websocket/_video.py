"""One frame of picture into one packet of VP8, H.264 or JPEG.

Takes I420 or RGB. Gives bytes. Never awaits: call an encoder from one thread at a time, off the
event loop; FFmpeg and OpenCV give up the interpreter's lock while they work.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from talking_avatar import MediaInfo
from talking_avatar_websocket._packets import VideoCodec

if TYPE_CHECKING:
    from av import VideoCodecContext

VIDEO_CODECS: tuple[VideoCodec, ...] = ("vp8", "h264", "jpeg")

Image = npt.NDArray[np.uint8]

_OPTIONS: Final[dict[str, dict[str, str]]] = {
    # Negative speeds are fixed; positive ones follow libvpx's own clock, and look worse on a busy
    # machine. At 704x1088 and 1.5 Mbit/s, CPU a frame and PSNR: -6 6.1 ms 44.0 dB, -8 5.8 ms
    # 43.8 dB, -12 4.2 ms 42.3 dB, -16 3.6 ms 37.5 dB (100 frames of the demo, Xeon core, December
    # 2026). A key frame of 1500 % of a frame's share is 47 KB at that rate; unbounded 98 KB, half a
    # second of the line.
    "libvpx": {
        "deadline": "realtime",
        "cpu-used": "-8",
        "lag-in-frames": "0",
        "max-intra-rate": "1500",
    },
    # 5.1 ms and 41.8 dB in the same measurement.
    "libx264": {"preset": "superfast", "tune": "zerolatency", "profile": "baseline"},
}
_KEY_EVERY_FRAMES = 240
"""Ten seconds: key frames are made when they are asked for; these are for recorders."""
_JPEG_QUALITY = 75
"""94 KB and 2.1 ms a frame at 704x1088; 18 Mbit/s: for loopback and the lack of anything better."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One packet."""

    data: bytes
    is_key: bool


class VideoEncoder(Protocol):
    """Encodes the frames of one stream at one rate."""

    def encode(self, image: Image, index: int, *, is_key: bool) -> EncodedImage | None:
        """Encode one frame; None where the encoder left it out.

        Args:
            image: In the layout that the stream announced.
            index: On the timeline; grows.
            is_key: Whether it must be a key frame.
        """
        ...


def load_codecs() -> None:
    """Import what encodes, so that the first viewer's first frames need not wait for it: 0.3 s."""
    import av.video.frame
    import cv2

    del av, cv2


def open_video_encoder(codec: VideoCodec, media: MediaInfo, kbps: int) -> VideoEncoder:
    """Make an encoder; call it in the thread that will encode."""
    if codec == "jpeg":
        return _JpegEncoder(media)
    return _FfmpegEncoder("libvpx" if codec == "vp8" else "libx264", media, kbps)


def codec_string(codec: VideoCodec, media: MediaInfo) -> str | None:
    """Give what WebCodecs calls the stream; None where it has no name for it."""
    if codec == "h264":
        return f"avc1.42c0{_h264_level(media):02x}"
    return "vp8" if codec == "vp8" else None


def _h264_level(media: MediaInfo) -> int:
    """Give the level, times ten, that a picture's macroblocks need; ITU-T H.264, table A-1."""
    num_blocks = -(-media.width // 16) * -(-media.height // 16)
    return 31 if num_blocks <= 3_600 and num_blocks * media.fps <= 108_000 else 40


class _FfmpegEncoder:
    def __init__(self, name: str, media: MediaInfo, kbps: int) -> None:
        from av import CodecContext

        context: VideoCodecContext = CodecContext.create(name, "w")  # type: ignore[assignment]
        context.width, context.height = media.width, media.height
        context.pix_fmt = "yuv420p"
        context.time_base = Fraction(1, media.fps)
        context.framerate = Fraction(media.fps)
        context.bit_rate = kbps * 1_000
        context.gop_size = _KEY_EVERY_FRAMES
        context.thread_count = 1  # with two, libvpx took 73 ms a frame instead of 9
        # ITU-T H.273 code points: BT.601 matrix and limited range, as the core converts.
        context.color_range, context.colorspace = 1, 6
        context.options = dict(_OPTIONS[name])
        if name == "libx264":
            rate = f"vbv-maxrate={kbps}:vbv-bufsize={kbps // 2}"
            level = _h264_level(media)
            context.options["x264-params"] = f"{rate}:level={level}:keyint={_KEY_EVERY_FRAMES}"
        self._context = context
        self._is_rgb = media.pixel_format == "rgb24"

    def encode(self, image: Image, index: int, *, is_key: bool) -> EncodedImage | None:
        from av import VideoFrame
        from av.video.frame import PictureType

        if self._is_rgb:
            image = _rgb_to_i420(image)
        frame = VideoFrame.from_ndarray(image, format="yuv420p")
        frame.pts = index
        if is_key:
            frame.pict_type = PictureType.I
        packets = self._context.encode(frame)
        if not packets:
            return None
        data = b"".join(bytes(packet) for packet in packets)
        return EncodedImage(data, any(packet.is_keyframe for packet in packets))


class _JpegEncoder:
    def __init__(self, media: MediaInfo) -> None:
        self._is_rgb = media.pixel_format == "rgb24"

    def encode(self, image: Image, index: int, *, is_key: bool) -> EncodedImage | None:
        import cv2

        convert = cv2.COLOR_RGB2BGR if self._is_rgb else cv2.COLOR_YUV2BGR_I420
        bgr = cv2.cvtColor(image, convert)
        _, data = cv2.imencode(".jpg", bgr, (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
        return EncodedImage(data.tobytes(), is_key=True)


def _rgb_to_i420(image: Image) -> Image:
    import cv2

    planes: Any = cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420)  # 0.3 ms; PyAV takes 3 to 5
    return np.asarray(planes, np.uint8)
