"""The chunks that an engine was given and that are not wholly shown yet.

Takes planned chunks, and what shall be forgotten. Gives their pictures as they arrive, in order.
Never decides what is said or when it is shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from talking_avatar.cost import Meter
from talking_avatar.engine.base import (
    AvatarStream,
    ChunkTicket,
    Controls,
    EngineInfo,
    SpeechWindow,
)
from talking_avatar.errors import ChunkDropped
from talking_avatar.pacing import Pacer
from talking_avatar.turn_plan import ChunkPlan
from talking_avatar.types import PixelFormat

Images = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Chunk:
    """A chunk from its submission until its last frame has left.

    Attributes:
        index: Of the chunk.
        ticket: The engine's.
        planned: When it was submitted.
        images: Its pictures, one a frame; None while the engine works on them.
        ready: When they were in host memory.
        decode_s: The decoder's part of the work.
        is_dropped: Whether a rewind made an end of it.
    """

    index: int
    ticket: ChunkTicket
    planned: float
    images: Images | None = None
    ready: float = 0.0
    decode_s: float = 0.0
    is_dropped: bool = False


class Pipeline:
    """One engine stream and what is in it.

    Args:
        stream: A fresh one.
        info: Of its engine.
        pixel_format: What the pictures are converted to, off the event loop.
        pacer: Told how long each chunk took.
        meter: Told of all work, shown or not.
        on_arrival: Called when a chunk has arrived.
    """

    def __init__(
        self,
        stream: AvatarStream,
        info: EngineInfo,
        *,
        pixel_format: PixelFormat,
        pacer: Pacer,
        meter: Meter,
        on_arrival: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._per_chunk = info.frames_per_chunk
        self._pixel_format = pixel_format
        self._pacer = pacer
        self._meter = meter
        self._on_arrival = on_arrival
        self._loop = asyncio.get_running_loop()
        self._chunks: dict[int, Chunk] = {}
        self._in_work: deque[Chunk] = deque()
        self._submitted = asyncio.Event()
        self._last_ready = 0.0

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Indices of the chunks that the engine works on, oldest first."""
        return tuple(chunk.index for chunk in self._in_work)

    def submit(self, plan: ChunkPlan, controls: Controls) -> None:
        """Give a chunk to the engine."""
        window = SpeechWindow(
            chunk_index=plan.index,
            samples=plan.samples,
            num_known=plan.num_known,
            speaking=plan.speaking,
        )
        ticket = self._stream.submit(window, controls)
        chunk = self._chunks[plan.index] = Chunk(plan.index, ticket, self._loop.time())
        self._in_work.append(chunk)
        self._submitted.set()

    async def rewind(self, to_chunk: int) -> None:
        """Forget every chunk after ``to_chunk``, made or not."""
        dropped = [chunk for index, chunk in self._chunks.items() if index > to_chunk]
        for chunk in dropped:
            chunk.is_dropped = True
            del self._chunks[chunk.index]
        self._in_work = deque(chunk for chunk in self._in_work if not chunk.is_dropped)
        if dropped:
            await self._stream.rewind(to_chunk)

    def is_ready(self, frame: int, num_chunks: int = 1) -> bool:
        """Whether a frame is there, and of the chunks after its own those that were submitted.

        Args:
            frame: Index on the timeline.
            num_chunks: How many chunks to look at, the frame's own included.
        """
        first = frame // self._per_chunk
        chunks = [self._chunks.get(first + n) for n in range(num_chunks)]
        is_there = chunks[0] is not None
        return is_there and all(chunk is None or chunk.images is not None for chunk in chunks)

    def chunk_of(self, frame: int) -> Chunk:
        """Give the chunk of a frame that was submitted and has not left."""
        return self._chunks[frame // self._per_chunk]

    def take(self, frame: int) -> Images:
        """Give the picture of a frame that is ready; with the last of a chunk, let go of it."""
        chunk = self.chunk_of(frame)
        assert chunk.images is not None
        image: Images = chunk.images[frame % self._per_chunk]
        if (frame + 1) % self._per_chunk == 0:
            del self._chunks[chunk.index]
        return image

    async def collect(self) -> None:
        """Wait for the engine's chunks, in order, until cancelled.

        Raises:
            EngineFailed: The engine raised.
        """
        while True:
            while not self._in_work:
                self._submitted.clear()
                await self._submitted.wait()
            await self._collect(self._in_work[0])

    async def _collect(self, chunk: Chunk) -> None:
        try:
            block = await chunk.ticket.frames()
        except ChunkDropped:
            if chunk.is_dropped:
                return
            raise
        self._meter.note(block)
        images = await self._converted(block.images)
        if chunk.is_dropped:
            return
        now = self._loop.time()
        self._in_work.remove(chunk)
        self._pacer.observe(block, service_s=now - max(chunk.planned, self._last_ready))
        self._last_ready = now
        chunk.images, chunk.ready, chunk.decode_s = images, now, block.decode_s
        self._on_arrival()

    async def _converted(self, images: Images) -> Images:
        if self._pixel_format == "rgb24":
            return images
        from talking_avatar.pixels import to_i420

        return await asyncio.to_thread(to_i420, images)
