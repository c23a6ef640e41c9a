"""A session's frames into one video file: H.264 and AAC.

Takes: frames of a session, live or unpaced, RGB or I420.
Gives: a file that appears under its name only when it is whole.
Never: encodes on the event loop, or drops a frame; it holds the session back instead.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from os import PathLike
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from talking_avatar.errors import TransportClosed
from talking_avatar.transport import MediaInfo, Transport

if TYPE_CHECKING:
    from av import AudioStream, Packet, VideoStream
    from av.container import OutputContainer

    from talking_avatar.types import Frame, Position

_MUXERS: Final = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
_PRESETS: Final = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow")
_LOOKAHEAD: Final = "mbtree=1:rc-lookahead=10"
"""Spends bits where they are seen longest. With it, superfast takes 5.8 ms of CPU a frame for
0.7 Mbit/s at 704x1088; without it 6.2 ms for 0.9, and veryfast 8.9 ms for the same picture
(color conversion and AAC included; 171 frames of the demo, Xeon core, December 2026)."""
_PENDING_FRAMES: Final = 8
"""Frames that wait for the encoder: enough to smooth a slow key frame, 18 MB at 704x1088."""


class FileTransport(Transport):
    """Write a session to a file.

    The file is written under a hidden name beside its own and renamed at the end, so that a
    failure leaves no broken file; one that was there stays until then.

    Args:
        path: Where; the suffix chooses the container: .mp4, .m4v, .mov or .mkv.
        quality: x264's constant rate factor: 18 looks lossless, 28 is small.
        preset: x264's preset, ``"ultrafast"`` to ``"slow"``: CPU time against size.
        num_threads: Threads that x264 encodes with, beside the one that feeds it.

    Raises:
        ValueError: No container has that suffix, or a number is out of range.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        quality: int = 20,
        preset: str = "superfast",
        num_threads: int = 1,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in _MUXERS:
            raise ValueError(f"{self.path.name!r} must end in one of {', '.join(_MUXERS)}")
        if not 0 <= quality <= 51:
            raise ValueError(f"quality {quality} must be 0 (best) to 51")
        if preset not in _PRESETS:
            raise ValueError(f"preset {preset!r} must be one of {', '.join(_PRESETS)}")
        if num_threads < 1:
            raise ValueError(f"num_threads {num_threads} must be at least 1")
        self._options = {"crf": str(quality), "preset": preset, "x264-params": _LOOKAHEAD}
        self._num_threads = num_threads
        self._writer: _Writer | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[asyncio.Future[None]] = deque()
        self._is_discarded = False
        self._is_closed = False

    async def open(self, media: MediaInfo) -> None:
        """Begin the file.

        Raises:
            OSError: It cannot be written there.
            TransportClosed: This transport was used before.
        """
        if self._writer is not None or self._is_closed:
            raise TransportClosed(f"{self.path.name} was written: make a new FileTransport")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="talking-avatar-file")
        self._writer = _Writer(self.path, media, self._options, self._num_threads)
        await self._run(self._writer.open)

    async def send(self, frame: Frame) -> None:
        """Queue a frame for the encoder; waits while eight are queued.

        Raises:
            TransportClosed: It could not be written: the disk is full, or the file was closed.
        """
        if self._writer is None or self._is_closed:
            raise TransportClosed(f"{self.path.name} is not open")
        while len(self._pending) >= _PENDING_FRAMES or (self._pending and self._pending[0].done()):
            await asyncio.wait([self._pending[0]])  # waits without cancelling the frame's writing
            self._raise_from(self._pending.popleft())
        self._pending.append(self._run(self._writer.write, frame))

    async def interrupt(self) -> None:
        """Do nothing: what was handed over is in the file."""

    def played_position(self) -> Position | None:
        """Give None: nobody is listening yet."""
        return None

    def discard(self) -> None:
        """Leave no file behind when this transport closes."""
        self._is_discarded = True

    async def aclose(self) -> None:
        """Finish the file and give it its name; without a frame there is none. Idempotent.

        Raises:
            OSError: It could not be finished; nothing was left behind.
        """
        if self._is_closed or self._thread is None or self._writer is None:
            self._is_closed = True
            return
        self._is_closed = True
        closing = self._run(self._writer.close, self._is_discarded)  # after all pending frames
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.gather(*self._pending, closing, return_exceptions=True))
        closing.result()

    def _run(self, function: Any, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _raise_from(self, written: asyncio.Future[None]) -> None:
        if error := written.exception():
            raise TransportClosed(f"{self.path.name} cannot be written: {error}") from error


class _Writer:
    """The file itself; every call but the first comes from the one thread, in order."""

    def __init__(
        self, path: Path, media: MediaInfo, x264_options: dict[str, str], num_threads: int
    ) -> None:
        self._path = path
        self._media = media
        self._x264_options = x264_options
        self._num_threads = num_threads
        self._part: Path | None = None
        self._container: OutputContainer | None = None
        self._first_index = 0
        self._num_frames = 0
        self._num_samples = 0
        self._has_failed = False

    def open(self) -> None:
        """Begin the hidden file."""
        import av

        folder = self._path.parent
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder} for {self._path.name}")
        if self._path.is_dir():
            raise IsADirectoryError(f"{self._path} is a folder: name a file in it")
        handle, part = mkstemp(prefix=f".{self._path.stem}-", suffix=".part", dir=folder)
        os.close(handle)
        self._part = Path(part)
        muxer = _MUXERS[self._path.suffix.lower()]
        options = {"movflags": "+faststart"} if muxer in ("mp4", "mov") else {}
        self._container = av.open(part, "w", muxer, options=options)
        self._video = self._add_video(self._container)
        self._audio: AudioStream = self._container.add_stream(
            "aac", rate=self._media.sample_rate, layout="mono"
        )
        self._audio.bit_rate = 96_000

    def _add_video(self, container: OutputContainer) -> VideoStream:
        """Tag what the pixels are: BT.601 matrix and limited range, as OpenCV converts them."""
        video = container.add_stream(
            "libx264", rate=self._media.fps, options=dict(self._x264_options)
        )
        context = video.codec_context
        video.width, video.height = self._media.width, self._media.height
        video.pix_fmt = "yuv420p"
        context.thread_count = self._num_threads
        context.time_base = Fraction(1, self._media.fps)
        # ITU-T H.273 code points, for players that ask.
        context.color_range, context.colorspace = 1, 6
        context.color_primaries, context.color_trc = 1, 1  # BT.709, near sRGB
        return video

    def write(self, frame: Frame) -> None:
        """Encode one frame; where frames were left out before it, sound is silent meanwhile.

        After a failure nothing more is written.
        """
        if self._has_failed or self._container is None:
            return
        self._has_failed = True
        if not self._num_frames:
            self._first_index = frame.index
        index = frame.index - self._first_index
        self._mux(self._encode_image(frame.image, index))
        if missing := index * len(frame.audio) - self._num_samples:
            self._mux(self._encode_audio(np.zeros(missing, np.int16)))
        self._mux(self._encode_audio(frame.audio))
        self._num_frames += 1
        self._has_failed = False

    def _encode_image(self, image: npt.NDArray[np.uint8], pts: int) -> list[Packet[Any]]:
        import cv2
        from av import VideoFrame

        if self._media.pixel_format == "rgb24":
            # 0.3 ms; PyAV takes 3 to 5
            image = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420), np.uint8)
        video = VideoFrame.from_ndarray(image, format="yuv420p")
        video.pts = pts
        video.time_base = Fraction(1, self._media.fps)
        return self._video.encode(video)

    def _encode_audio(self, pcm: npt.NDArray[np.int16]) -> list[Packet[Any]]:
        from av import AudioFrame

        audio = AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        audio.sample_rate = self._media.sample_rate
        audio.time_base = Fraction(1, self._media.sample_rate)
        audio.pts = self._num_samples
        self._num_samples += len(pcm)
        return self._audio.encode(audio)

    def _mux(self, packets: list[Packet[Any]]) -> None:
        assert self._container is not None
        self._container.mux(packets)

    def close(self, is_discarded: bool) -> None:
        """Finish the file under its own name, or leave none."""
        is_wanted = self._num_frames and not is_discarded and not self._has_failed
        try:
            if is_wanted:
                self._mux(self._video.encode(None))
                self._mux(self._audio.encode(None))
            if self._container is not None:
                self._container.close()
            if is_wanted and self._part is not None:
                self._part.chmod(0o666 & ~_umask())
                self._part.replace(self._path)
        finally:
            if self._part is not None:
                self._part.unlink(missing_ok=True)


def _umask() -> int:
    """Read the process's mask, which a file made by mkstemp ignores."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
