"""The diffusion engine behind the seam: photos to characters, characters to streams.

Takes: a `DiffusionConfig`, then photos. Gives: an `Engine`.
Never: blocks the event loop; ranks, decoder and photo room work on their own threads.

Threads while open: one per rank, one that drives the ranks, one that decodes. While the decoder
works on chunk i, the ranks denoise chunk i + 1.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from anyio import CancelScope

from talking_avatar.config import DiffusionConfig
from talking_avatar.engine.base import (
    ControlName,
    Controls,
    EngineInfo,
    Photo,
    PhotoWarning,
    SpeechWindow,
)
from talking_avatar.engine.diffusion.conditioning.photo import DiffusionAvatar, encode_avatar
from talking_avatar.engine.diffusion.opening import (
    PIPELINE_DEPTH,
    Parts,
    as_engine_error,
    open_parts,
    use_device,
)
from talking_avatar.engine.diffusion.ranks.group import pin_torch_threads
from talking_avatar.engine.diffusion.stream import DiffusionStream
from talking_avatar.engine.portrait.framed import FramedPhoto
from talking_avatar.engine.portrait.room import PhotoRoom
from talking_avatar.errors import EngineError

BACKGROUND = (38, 40, 44)
"""RGB where the photo ends."""
CONTROLS: frozenset[ControlName] = frozenset(
    {"listening", "blink", "gaze", "head", "mouth_gain", "emotion"}
)
WARM_UP_CHUNKS = 3
"""Made at opening: the first loads and allocates; the last says how long a chunk takes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Workers:
    denoising: ThreadPoolExecutor
    decoding: ThreadPoolExecutor


def _begin_decoding(device: str, num_threads: int) -> None:
    pin_torch_threads(num_threads)
    use_device(device)


async def _load(config: DiffusionConfig, num_threads: int) -> Parts:
    """Load on a thread of its own; one that is no longer waited for closes what it opened."""
    loader = ThreadPoolExecutor(1, "talking-avatar-load")
    loading = loader.submit(open_parts, config, threads_per_rank=num_threads)
    loader.shutdown(wait=False)
    try:
        return await asyncio.wrap_future(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_discard)
        raise


def _discard(loading: Future[Parts]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().group.close()


class DiffusionEngine:
    """An `Engine`. Use `open`."""

    def __init__(self, parts: Parts, num_threads: int) -> None:
        """Start the workers.

        Args:
            parts: The opened model; the engine closes it.
            num_threads: For torch, in the decoder on a CPU.
        """
        config = parts.config
        self._parts = parts
        self._group = parts.group
        self._room = PhotoRoom()
        self._streams: WeakSet[DiffusionStream] = WeakSet()
        self._is_closed = False
        self._workers = _Workers(
            ThreadPoolExecutor(1, "talking-avatar-denoise"),
            ThreadPoolExecutor(
                1,
                "talking-avatar-decode",
                initializer=_begin_decoding,
                initargs=(parts.decoder_device, num_threads),
            ),
        )
        self._info = EngineInfo(
            name="diffusion",
            width=config.width,
            height=config.height,
            frames_per_chunk=config.frames_per_chunk,
            lookahead_samples=config.lookahead_samples,
            pipeline_depth=PIPELINE_DEPTH,
            step_s=config.chunk_s,
            decode_s=config.chunk_s,
            controls=CONTROLS if config.num_control_tokens else frozenset(),
            devices=parts.devices,
        )

    @classmethod
    async def open(cls, config: DiffusionConfig) -> DiffusionEngine:
        """Load a model, start its ranks and time a chunk; see `open_diffusion_engine`."""
        # One decoder beside the ranks; on a CPU they share the cores.
        num_threads = max(1, (os.cpu_count() or 1) // (len(config.devices) + 1))
        engine = cls(await _load(config, num_threads), num_threads)
        try:
            await engine._warm_up()
        except BaseException:
            with CancelScope(shield=True):
                await engine.aclose()
            raise
        return engine

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def prepare(self, photo: Photo, *, face: int | None = None) -> DiffusionAvatar:
        """Make a character of a photo; see `Engine.prepare`."""
        self._check_open()
        framed = await asyncio.to_thread(self._frame, photo, face)
        return await self._encode(framed.image, framed.warnings)

    async def open_stream(self, avatar: DiffusionAvatar, *, seed: int = 0) -> DiffusionStream:
        """Begin one character's motion; see `Engine.open_stream`.

        Raises:
            TypeError: The avatar is another kind of engine's.
            ValueError: It is another model's.
            OutOfMemory: Its cache does not fit beside the others.
        """
        self._check_open()
        if not isinstance(avatar, DiffusionAvatar):
            raise TypeError(f"{type(avatar).__name__} was not prepared by a diffusion engine")
        wanted = (self._parts.config.latent_channels, *self._parts.config.latent_size)
        if tuple(avatar.condition.latent.shape) != wanted:
            raise ValueError(
                f"the avatar's latent is {tuple(avatar.condition.latent.shape)}, this model's "
                f"{wanted}: it was prepared by another engine"
            )
        stream = DiffusionStream(self._parts, self._workers, self._info, avatar, seed)
        self._streams.add(stream)
        try:
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    async def aclose(self) -> None:
        """Close every stream, end all threads, free the model. Idempotent.

        Cancelling the wait does not stop the closing.
        """
        self._is_closed = True
        for stream in list(self._streams):
            stream.close()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._workers.denoising.shutdown()
        self._workers.decoding.shutdown()
        self._group.close()
        # A caller may keep the engine; the model shall not live on for it.
        vars(self).pop("_parts", None)

    def _frame(self, photo: Photo, face: int | None) -> FramedPhoto:
        config = self._parts.config
        return self._room.prepare(
            photo, width=config.width, height=config.height, background=BACKGROUND, face=face
        )

    async def _encode(
        self, image: npt.NDArray[np.uint8], warnings: tuple[PhotoWarning, ...] = ()
    ) -> DiffusionAvatar:
        self._check_open()  # again: framing took a while
        parts = self._parts

        def encode() -> DiffusionAvatar:
            try:
                return encode_avatar(image, parts.encoder, parts.config, warnings)
            except Exception as error:
                raise as_engine_error("the photo could not be encoded", error) from error

        return await asyncio.wrap_future(self._workers.decoding.submit(encode))

    async def _warm_up(self) -> None:
        """Make a few chunks of a gray photo: loads kernels, and says how long a chunk takes."""
        info = self._info
        avatar = await self._encode(np.full((info.height, info.width, 3), 128, np.uint8))
        stream = await self.open_stream(avatar)
        samples = np.zeros(info.chunk_samples + info.lookahead_samples, np.float32)
        for chunk in range(WARM_UP_CHUNKS):
            ticket = stream.submit(
                SpeechWindow(chunk, samples, len(samples), speaking=False), Controls()
            )
            block = await ticket.frames()
        await stream.aclose()
        self._info = replace(info, step_s=block.generate_s, decode_s=block.decode_s)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the engine is closed: open another one")
