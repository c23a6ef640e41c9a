"""One photo and one speech file into one video file, with a report of what it took.

Takes paths and settings; gives a `RenderReport`. The work of ``talking-avatar render``: an unpaced
session whose frames go to a file. Never prints.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import numpy as np

from talking_avatar.engine.base import FPS, SAMPLE_RATE, SAMPLES_PER_FRAME, PhotoWarning
from talking_avatar.file_transport import FileTransport
from talking_avatar.media import decode_file
from talking_avatar.session import AvatarSession
from talking_avatar.transport import MediaInfo, Transport

if TYPE_CHECKING:
    from talking_avatar.config import EngineConfig
    from talking_avatar.types import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderReport:
    """What was rendered and what it took.

    Wall and CPU time run from the first speech pushed to the file being whole; loading the engine
    and preparing the photo come before, in ``prepare_s``.

    Attributes:
        frames: Frames in the file.
        fps: Frames a second of the file.
        duration_s: ``frames / fps``.
        width, height: Pixels.
        prepare_s: Seconds to open the engine and make the photo a character.
        ms_per_frame_p50, ms_per_frame_p95, ms_per_frame_max: Wall time of each chunk of frames,
            divided by its number of frames; encoding included.
        render_fps: Frames a second of wall time.
        real_time_factor: ``duration_s`` divided by the wall time; above 1 is faster than real time.
        first_frame_s: First speech pushed to first frame handed out.
        late_frames: Frames handed over late; 0 in a file, where nothing is due.
        cpu_cores: Cores busy on average.
        peak_rss_bytes: Of the whole process since it started; None where it cannot be known.
        gpu_hours: GPUs held.
    """

    frames: int
    fps: int
    duration_s: float
    width: int
    height: int
    prepare_s: float
    ms_per_frame_p50: float
    ms_per_frame_p95: float
    ms_per_frame_max: float
    render_fps: float
    real_time_factor: float
    first_frame_s: float | None
    late_frames: int
    cpu_cores: float
    peak_rss_bytes: int | None
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a rendering has come; given to the caller after each frame."""

    frames: int
    total_frames: int


async def render(
    photo: Path,
    speech: Path,
    output: Path,
    *,
    engine: EngineConfig | str = "portrait",
    face: int | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_warning: Callable[[PhotoWarning], None] = lambda _: None,
) -> RenderReport:
    """Render a photo speaking.

    Args:
        photo: An image file.
        speech: An audio file, or a video whose sound it is.
        output: The video file, written whole or not at all; see `FileTransport`.
        engine: Its configuration or name.
        face: Index of the face, in a photo of several.
        seed: Of blinks and head motion: same seed, same frames.
        on_progress: Called after each frame, on the event loop.
        on_warning: Called for each warning about the photo.

    Raises:
        PhotoError: The photo cannot become a character.
        AudioFormatError: The speech cannot be read.
        ValueError: The output's suffix is unknown.
        OSError: A file is not there or cannot be written.
    """
    file = FileTransport(output)
    samples = await anyio.to_thread.run_sync(decode_file, speech)
    total_frames = math.ceil(len(samples) / SAMPLES_PER_FRAME)
    recorder = _Recorder(file, lambda n: on_progress(Progress(frames=n, total_frames=total_frames)))
    began_s = time.perf_counter()
    session = AvatarSession(
        photo, engine=engine, transport=recorder, clock="unpaced", seed=seed, face=face
    )
    async with session:
        with _discarding_what_fails(file):
            for warning in session.avatar.warnings:
                on_warning(warning)
            start = _Instant.now()
            with recorder.cancel_on_failure:
                result = await session.say(samples, sample_rate=SAMPLE_RATE)
    took = _Instant.now().since(start)
    if recorder.failure is not None:
        raise recorder.failure
    chunk_ms = recorder.chunk_ms(session.info.frames_per_chunk, start.wall_s)
    duration_s = recorder.num_frames / FPS
    return RenderReport(
        frames=recorder.num_frames,
        fps=FPS,
        duration_s=duration_s,
        width=session.info.width,
        height=session.info.height,
        prepare_s=start.wall_s - began_s,
        ms_per_frame_p50=float(np.percentile(chunk_ms, 50)),
        ms_per_frame_p95=float(np.percentile(chunk_ms, 95)),
        ms_per_frame_max=float(np.max(chunk_ms)),
        render_fps=recorder.num_frames / took.wall_s,
        real_time_factor=duration_s / took.wall_s,
        first_frame_s=result.first_frame_s,
        late_frames=session.stats().late_frames.total,
        cpu_cores=took.cpu_s / took.wall_s,
        peak_rss_bytes=peak_rss_bytes(),
        gpu_hours=session.gpu_hours(),
    )


@contextmanager
def _discarding_what_fails(file: FileTransport) -> Iterator[None]:
    """Leave no half of a video, also when the user stops it: said before the file is closed."""
    try:
        yield
    except BaseException:
        file.discard()
        raise


@dataclass(frozen=True, slots=True)
class _Instant:
    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> _Instant:
        return cls(time.perf_counter(), time.process_time())

    def since(self, earlier: _Instant) -> _Instant:
        return _Instant(self.wall_s - earlier.wall_s, self.cpu_s - earlier.cpu_s)


class _Recorder(Transport):
    """Passes the frames of the turn on to the file, none of the idle motion around it."""

    def __init__(self, file: FileTransport, on_frame: Callable[[int], None]) -> None:
        self._file = file
        self._on_frame = on_frame
        self.cancel_on_failure = anyio.CancelScope()
        self.failure: Exception | None = None
        self._sent_s: list[float] = []

    @property
    def num_frames(self) -> int:
        return len(self._sent_s)

    async def open(self, media: MediaInfo) -> None:
        await self._file.open(media)

    async def send(self, frame: Frame) -> None:
        if frame.turn_id is None:
            return
        with self._noting_failure():
            await self._file.send(frame)
        self._sent_s.append(time.perf_counter())
        self._on_frame(self.num_frames)

    async def interrupt(self) -> None:
        await self._file.interrupt()

    async def aclose(self) -> None:
        with self._noting_failure():
            await self._file.aclose()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """End the rendering: a session would speak on without its transport."""
        try:
            yield
        except Exception as error:
            self.failure = error
            self.cancel_on_failure.cancel()
            raise

    def chunk_ms(self, frames_per_chunk: int, start_s: float) -> list[float]:
        """Give milliseconds a frame, one value a chunk: its frames come all at once."""
        ends = self._sent_s[frames_per_chunk - 1 :: frames_per_chunk]
        if self.num_frames % frames_per_chunk:
            ends.append(self._sent_s[-1])
        sizes = [frames_per_chunk] * (self.num_frames // frames_per_chunk)
        if rest := self.num_frames % frames_per_chunk:
            sizes.append(rest)
        begins = [start_s, *ends[:-1]]
        return [
            (end - begin) / size * 1e3 for begin, end, size in zip(begins, ends, sizes, strict=True)
        ]


def peak_rss_bytes() -> int | None:
    """Give the most memory that this process has held; None where the system does not say."""
    if sys.platform == "linux":
        # Not getrusage: there a process begins with the peak of the one that started it.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None
