"""An engine of the user's own timing: no photo needed, no thread, frames that tell what made them.

Its step times are scripted and pass as timers of the running loop, so that it works in virtual
time. It holds its user to the seam's contract: order, sizes, pipeline depth, rewind depth.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from talking_avatar.engine.base import (
    ControlName,
    Controls,
    Device,
    EngineInfo,
    FrameBlock,
    Photo,
    PhotoWarning,
    SpeechWindow,
)
from talking_avatar.errors import ChunkDropped, EngineBusy, EngineFailed

_STAMP = struct.Struct("<iIfB")
_ALL_CONTROLS: frozenset[ControlName] = frozenset(
    ("listening", "blink", "gaze", "head", "mouth_gain", "emotion")
)

Script = Callable[[int], float]
"""Gives the seconds that the n-th submission takes, or raises what the engine shall die of."""


@dataclass(frozen=True, slots=True)
class FakePicture:
    """What a frame of `FakeEngine` says of itself; read it with `read_picture`.

    Attributes:
        frame: Index on the timeline: ``chunk_index * frames_per_chunk + n``.
        history: CRC-32 of all windows that led to it, in order: what a rewind must bring back.
        energy: Mean square of the frame's own 1,000 samples in the window: how far the mouth
            is open.
        speaking: The window's.
    """

    frame: int
    history: int
    energy: float
    speaking: bool


def read_picture(image: npt.NDArray[np.uint8]) -> FakePicture:
    """Read what `FakeEngine` wrote into the first pixels of an RGB image (H, W, 3)."""
    frame, history, energy, speaking = _STAMP.unpack(image.reshape(-1)[: _STAMP.size].tobytes())
    return FakePicture(frame, history, energy, bool(speaking))


@dataclass(frozen=True, slots=True)
class FakeAvatar:
    """Any photo, prepared."""

    warnings: tuple[PhotoWarning, ...] = ()


class FakeTicket:
    """One chunk that a timer will finish."""

    def __init__(self, chunk_index: int) -> None:
        self.chunk_index = chunk_index
        self._done: asyncio.Future[FrameBlock] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_done(self) -> bool:
        """Whether it is no longer outstanding."""
        return self._done.done()

    def finish(self, result: FrameBlock | Exception) -> None:
        """Let those who wait go on."""
        if self._done.done():
            return
        if isinstance(result, Exception):
            self._done.set_exception(result)
        else:
            self._done.set_result(result)

    async def frames(self) -> FrameBlock:
        return await asyncio.shield(self._done)


class FakeStream:
    """One stream of a `FakeEngine`.

    Attributes:
        windows: The last windows that were submitted and not rewound, newest last.
        controls: Of the last submissions, rewound ones included.
        num_submitted: Submissions in all, dropped ones included.
        num_rewinds: Calls of `rewind`.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._info = engine.info
        self._free_at = 0.0
        self._history: dict[int, int] = {-1: 0}
        self._next = 0
        self._outstanding: deque[FakeTicket] = deque()
        self.windows: deque[SpeechWindow] = deque(maxlen=64)
        self.controls: deque[Controls] = deque(maxlen=64)
        self.num_submitted = 0
        self.num_rewinds = 0
        self.is_closed = False

    def submit(self, window: SpeechWindow, controls: Controls) -> FakeTicket:
        self._check(window)
        loop = asyncio.get_running_loop()
        self._next += 1
        number, self.num_submitted = self.num_submitted, self.num_submitted + 1
        self.windows.append(window)
        self.controls.append(controls)
        before = self._history[window.chunk_index - 1]
        self._history[window.chunk_index] = crc32(window.samples.tobytes(), before)
        self._history.pop(window.chunk_index - 2 * self._info.pipeline_depth - 4, None)
        ticket = FakeTicket(window.chunk_index)
        self._outstanding.append(ticket)
        try:
            step_s = self._engine.step_time(number)
        except Exception as error:
            loop.call_soon(self._fail, ticket, error)
            return ticket
        self._free_at = max(self._free_at, loop.time()) + step_s
        block = self._block(window, step_s)
        ticket.timer = loop.call_at(self._free_at + self._info.decode_s, ticket.finish, block)
        return ticket

    def _check(self, window: SpeechWindow) -> None:
        while self._outstanding and self._outstanding[0].is_done:
            self._outstanding.popleft()
        if len(self._outstanding) >= self._info.pipeline_depth:
            raise EngineBusy(f"{len(self._outstanding)} chunks are outstanding")
        if window.chunk_index != self._next:
            raise ValueError(f"chunk {window.chunk_index} came where {self._next} was due")
        num_samples = self._info.chunk_samples + self._info.lookahead_samples
        if window.samples.shape != (num_samples,) or window.samples.dtype != np.float32:
            raise ValueError(f"window of {window.samples.shape} {window.samples.dtype}")
        if not self._info.chunk_samples <= window.num_known <= num_samples:
            raise ValueError(f"num_known {window.num_known} of {num_samples}")
        if window.samples[window.num_known :].any():
            raise ValueError("samples that are not known must be zeros")

    def _block(self, window: SpeechWindow, step_s: float) -> FrameBlock:
        info = self._info
        images = np.zeros((info.frames_per_chunk, info.height, info.width, 3), np.uint8)
        sound = window.samples[: info.chunk_samples].reshape(info.frames_per_chunk, -1)
        history = self._history[window.chunk_index]
        for n, image in enumerate(images):
            frame = window.chunk_index * info.frames_per_chunk + n
            energy = float(np.mean(np.square(sound[n])))
            stamp = _STAMP.pack(frame, history, energy, window.speaking)
            image.reshape(-1)[: _STAMP.size] = np.frombuffer(stamp, np.uint8)
        return FrameBlock(window.chunk_index, images, step_s, info.decode_s)

    @staticmethod
    def _fail(ticket: FakeTicket, error: Exception) -> None:
        failure = EngineFailed(f"the fake engine failed in chunk {ticket.chunk_index}: {error}")
        failure.__cause__ = error
        ticket.finish(failure)

    async def rewind(self, to_chunk: int) -> None:
        oldest = self._next - 1 - (2 * self._info.pipeline_depth + 2)
        if not max(-1, oldest) <= to_chunk < self._next:
            raise ValueError(f"cannot go back to {to_chunk} from {self._next - 1}")
        self.num_rewinds += 1
        self._next = to_chunk + 1
        loop = asyncio.get_running_loop()
        for ticket in self._outstanding:
            if ticket.chunk_index > to_chunk and not ticket.is_done:
                if ticket.timer is not None:
                    ticket.timer.cancel()
                ticket.finish(ChunkDropped(f"chunk {ticket.chunk_index} was rewound"))
        while self.windows and self.windows[-1].chunk_index > to_chunk:
            self.windows.pop()
        self._outstanding = deque(t for t in self._outstanding if not t.is_done)
        kept = [ticket.timer.when() for ticket in self._outstanding if ticket.timer]
        self._free_at = max([loop.time(), *(when - self._info.decode_s for when in kept)])

    async def aclose(self) -> None:
        self.is_closed = True
        for ticket in self._outstanding:
            if ticket.timer is not None:
                ticket.timer.cancel()
            ticket.finish(ChunkDropped("the stream was closed"))


class FakeEngine:
    """An engine with scripted step times.

    Args:
        step_s: Seconds that each chunk takes, or a `Script`.
        decode_s: Seconds from then to its frames being there.
        frames_per_chunk, lookahead_samples, pipeline_depth: As in `EngineInfo`.
        expected_step_s: What `EngineInfo.step_s` promises; None: ``step_s``, or 15 ms for a
            `Script`.
        width, height: Of a frame; small, so that an hour of them is cheap.
        devices: What it says it holds.

    Attributes:
        streams: All that were opened.
    """

    def __init__(
        self,
        *,
        step_s: float | Script = 0.015,
        decode_s: float = 0.0,
        frames_per_chunk: int = 1,
        lookahead_samples: int = 2_880,
        pipeline_depth: int = 3,
        expected_step_s: float | None = None,
        width: int = 16,
        height: int = 16,
        devices: tuple[Device, ...] = (Device("cpu", "cpu", "render"),),
    ) -> None:
        self._script: Script = step_s if callable(step_s) else lambda number: step_s
        expected = 0.015 if callable(step_s) else step_s
        self._info = EngineInfo(
            name="fake",
            width=width,
            height=height,
            frames_per_chunk=frames_per_chunk,
            lookahead_samples=lookahead_samples,
            pipeline_depth=pipeline_depth,
            step_s=expected if expected_step_s is None else expected_step_s,
            decode_s=decode_s,
            controls=_ALL_CONTROLS,
            devices=devices,
        )
        self.streams: list[FakeStream] = []
        self.is_closed = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    def step_time(self, number: int) -> float:
        """Seconds that the n-th submission of a stream takes."""
        return self._script(number)

    async def prepare(self, photo: Photo, *, face: int | None = None) -> FakeAvatar:
        return FakeAvatar()

    async def open_stream(self, avatar: Any, *, seed: int = 0) -> FakeStream:
        stream = FakeStream(self)
        self.streams.append(stream)
        return stream

    async def aclose(self) -> None:
        self.is_closed = True
