"""The portrait engine: animates the photo itself, on the CPU.

Takes: a photo, then speech. Gives: frames, one a chunk.
Never: needs a GPU, a download or another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

from anyio import to_thread

from talking_avatar.config import PortraitConfig
from talking_avatar.engine.base import EngineInfo, Photo, PhotoWarning
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.performer import Performer
from talking_avatar.engine.portrait.renderer import PortraitRenderer
from talking_avatar.engine.portrait.room import PhotoRoom
from talking_avatar.engine.portrait.stream import PortraitStream
from talking_avatar.errors import EngineError

PIPELINE_DEPTH = 3
"""Chunks of one frame: 125 ms of work in hand, which rides out a busy moment of the machine."""
STEP_S = 0.016
"""To make one frame of 704x1088 on one core: 10.4 ms of CPU time, and room for a busy machine."""


@dataclass(frozen=True, slots=True, eq=False)
class PortraitAvatar:
    """A photo, ready to move.

    Attributes:
        photo: As it was framed.
        renderer: Draws it; shared by all its streams.
    """

    photo: FramedPhoto
    renderer: PortraitRenderer

    @property
    def warnings(self) -> tuple[PhotoWarning, ...]:
        return self.photo.warnings


class PortraitEngine:
    """An `Engine` that is open at once: its networks, 1.7 MB, are read with the first photo."""

    def __init__(self, config: PortraitConfig) -> None:
        self._config = config
        self._room = PhotoRoom()
        # Weak: a running stream is kept by its own thread, a closed one should go.
        self._streams: WeakSet[PortraitStream] = WeakSet()
        self._is_closed = False
        self._info = EngineInfo(
            name="portrait",
            width=config.width,
            height=config.height,
            frames_per_chunk=1,
            lookahead_samples=Performer.LOOKAHEAD_SAMPLES,
            pipeline_depth=PIPELINE_DEPTH,
            step_s=STEP_S * config.width * config.height / (704 * 1088),
            controls=Performer.CONTROLS,
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def prepare(self, photo: Photo, *, face: int | None = None) -> PortraitAvatar:
        """Make a character of a photo, off the event loop; see `Engine.prepare`."""
        self._check_open()
        return await to_thread.run_sync(self._prepare, photo, face)

    async def open_stream(self, avatar: PortraitAvatar, *, seed: int = 0) -> PortraitStream:
        """Begin one character's motion; see `Engine.open_stream`."""
        self._check_open()
        if not isinstance(avatar, PortraitAvatar):
            raise TypeError(f"{type(avatar).__name__} was not prepared by a portrait engine")
        height, width = avatar.photo.image.shape[:2]
        if (width, height) != (self._info.width, self._info.height):
            raise ValueError(
                f"the avatar was prepared for {width}x{height}, this engine makes "
                f"{self._info.width}x{self._info.height}: prepare the photo with this engine"
            )
        stream = PortraitStream(
            Performer(seed), avatar.renderer, self._info, self._config.num_threads
        )
        self._streams.add(stream)
        return stream

    async def aclose(self) -> None:
        """Close every stream. Idempotent."""
        self._is_closed = True
        for stream in list(self._streams):
            await stream.aclose()

    def _prepare(self, photo: Photo, face: int | None) -> PortraitAvatar:
        config = self._config
        framed = self._room.prepare(
            photo, width=config.width, height=config.height, background=config.background, face=face
        )
        return PortraitAvatar(framed, PortraitRenderer(framed))

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the engine is closed: open another one")
