"""One character in motion: orders from the event loop, done by two workers in a row.

Takes: windows and controls. Gives: tickets, settled in order. Never: works on the caller's thread.

    submit --> denoising worker (conditions, then all ranks) --> decoding worker --> ticket
    rewind --> denoising worker (ring, speech)               --> decoding worker (decoder's state)

Both workers take orders first in, first out, and a rewind is an order like any other, so it finds
exactly the chunks before it done. A chunk that a rewind dropped is skipped wherever it still waits.
The queues need no bound of their own: at most `PIPELINE_DEPTH` tickets are outstanding.

Attributes are owned by one thread each, as marked; nothing is locked but the caller's.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from talking_avatar.engine._tickets import ThreadTicket
from talking_avatar.engine.base import Controls, EngineInfo, FrameBlock, SpeechWindow
from talking_avatar.engine.diffusion.cache.ring import ChunkSlots, Ring
from talking_avatar.engine.diffusion.conditioning.controls import control_numbers
from talking_avatar.engine.diffusion.conditioning.photo import DiffusionAvatar
from talking_avatar.engine.diffusion.conditioning.speech import SpeechHistory
from talking_avatar.engine.diffusion.denoise import ChunkWork, Denoiser, draw_noise
from talking_avatar.engine.diffusion.opening import PIPELINE_DEPTH, Parts, as_engine_error
from talking_avatar.engine.diffusion.ranks.comm import Comm
from talking_avatar.errors import EngineBusy, EngineError


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """One chunk to make."""

    window: SpeechWindow
    controls: Controls
    ticket: ThreadTicket
    dropped: threading.Event


@dataclass(frozen=True, slots=True, eq=False)
class _Failure:
    """Why a stream makes no more chunks.

    Attributes:
        chunk: The first that failed.
        error: What it raised.
        is_torn: Whether a reset was under way: some stored keys are turned, others are not.
    """

    chunk: int
    error: Exception
    is_torn: bool

    def ends_at(self, to_chunk: int) -> bool:
        """Tell whether a rewind leads back to where all is well."""
        return to_chunk == -1 or (to_chunk < self.chunk and not self.is_torn)


class Workers(Protocol):
    """The engine's two threads; shared by its streams."""

    @property
    def denoising(self) -> Executor: ...
    @property
    def decoding(self) -> Executor: ...


class DiffusionStream:
    """An `AvatarStream` on the engine's workers."""

    def __init__(
        self, parts: Parts, workers: Workers, info: EngineInfo, avatar: DiffusionAvatar, seed: int
    ) -> None:
        """Prepare; `begin` allocates."""
        self._parts, self._workers, self._info = parts, workers, info
        self._avatar, self._seed = avatar, seed
        # The caller's: orders outstanding, and a ring that only says how far back one may go.
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self._submitted = Ring.empty(parts.ring)
        self._is_closed = False
        # The denoising worker's.
        self._ring = Ring.empty(parts.ring)
        self._denoisers: list[Denoiser] = []
        self._histories: dict[int, SpeechHistory] = {-1: SpeechHistory()}
        self._failure: _Failure | None = None
        # The decoding worker's.
        self._states: dict[int, Any] = {}
        self._decoder_failure: Exception | None = None
        self._released: Future[None] = Future()

    async def begin(self) -> None:
        """Allocate the caches, write the sink, start the decoder.

        Raises:
            OutOfMemory: The caches or the decoder's state do not fit.
            EngineFailed: A rank or the decoder failed.
            EngineError: The stream was closed meanwhile.
        """
        steps = (
            (self._workers.denoising, self._write_sink),
            (self._workers.decoding, self._start_decoder),
        )
        for worker, step in steps:
            with self._lock:  # a worker takes orders until every stream is closed
                self._check_open()
                begun = worker.submit(step)
            await asyncio.wrap_future(begun)

    def submit(self, window: SpeechWindow, controls: Controls) -> ThreadTicket:
        """Queue one chunk; see `AvatarStream.submit`."""
        with self._lock:
            self._check(window)
            order = _Order(window, controls, ThreadTicket(window.chunk_index), threading.Event())
            self._submitted, _ = self._submitted.advance()
            self._orders.append(order)
            self._workers.denoising.submit(self._denoise, order)
        return order.ticket

    async def rewind(self, to_chunk: int) -> None:
        """Forget every chunk after ``to_chunk``; see `AvatarStream.rewind`."""
        with self._lock:
            self._check_open()
            self._submitted = self._submitted.rewind(to_chunk)
            self._drop_after(to_chunk, f"the stream was rewound to chunk {to_chunk}")
            self._workers.denoising.submit(self._restore, to_chunk)

    async def aclose(self) -> None:
        """Drop what is outstanding and free the caches; waits for the chunk in work.

        Cancelling the wait does not keep the caches.
        """
        self.close()
        await asyncio.shield(asyncio.wrap_future(self._released))

    def close(self) -> None:
        """Do what `aclose` does, without waiting for it."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            self._drop_after(-1, "the stream was closed")
            if not was_closed:
                self._workers.denoising.submit(self._release_caches)

    def _check(self, window: SpeechWindow) -> None:
        self._check_open()
        info, expected = self._info, self._submitted.next_chunk
        num_samples = info.chunk_samples + info.lookahead_samples
        if window.chunk_index != expected:
            raise ValueError(f"chunk {window.chunk_index} submitted, {expected} expected")
        if window.samples.shape != (num_samples,):
            raise ValueError(f"samples have shape {window.samples.shape}, not ({num_samples},)")
        if not info.chunk_samples <= window.num_known <= num_samples:
            raise ValueError(
                f"num_known is {window.num_known}, not {info.chunk_samples} to {num_samples}"
            )
        if len(self._orders) >= PIPELINE_DEPTH:
            raise EngineBusy(
                f"{len(self._orders)} chunks are outstanding, as many as the pipeline holds: "
                "await a ticket first"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the stream is closed: open another one")

    def _drop_after(self, to_chunk: int, reason: str) -> None:
        for order in [o for o in self._orders if o.ticket.chunk_index > to_chunk]:
            self._orders.remove(order)
            order.dropped.set()
            order.ticket.drop(reason)

    def _settle(self, order: _Order, outcome: FrameBlock | EngineError) -> None:
        with self._lock:
            if order in self._orders:
                self._orders.remove(order)
        order.ticket.settle(outcome)

    # ---- the denoising worker

    def _write_sink(self) -> None:
        parts = self._parts

        def begin(comm: Comm) -> Denoiser:
            return Denoiser(
                parts.models[comm.rank],
                parts.ring,
                self._avatar.condition,
                num_ranks=comm.world_size,
                kv_precision=parts.options.kv_precision,
                device=parts.options.devices[comm.rank],
            )

        try:
            self._denoisers = parts.group.run(begin)
        except Exception as error:
            raise as_engine_error("the diffusion engine could not open a stream", error) from error

    def _denoise(self, order: _Order) -> None:
        if order.dropped.is_set():
            return
        if self._failure is not None:
            self._settle(order, _failed(order, self._failure.error))
            return
        begin = perf_counter()
        self._ring, slots = self._ring.advance()
        try:
            latent = self._latent(order, slots)
        except Exception as error:
            self._failure = _Failure(slots.chunk, error, is_torn=bool(slots.lowered))
            self._settle(order, _failed(order, error))
            return
        spent_s = perf_counter() - begin
        self._workers.decoding.submit(self._decode, order, latent, spent_s)

    def _latent(self, order: _Order, slots: ChunkSlots) -> Tensor:
        assert slots.chunk == order.window.chunk_index, (slots, order.window.chunk_index)
        work = self._work(order, slots)
        latent = self._parts.group.run(lambda comm: self._denoisers[comm.rank].run(work))[0]
        _check_finite(latent)
        return latent

    def _work(self, order: _Order, slots: ChunkSlots) -> ChunkWork:
        chunk, config = slots.chunk, self._parts.config
        speech = np.zeros((0, config.speech.inputs), np.float32)
        history = self._histories[chunk - 1]
        if config.num_speech_tokens:
            speech, history = self._parts.front_end.hear(order.window.samples, history)
        self._histories[chunk] = history
        _forget_old(self._histories, chunk, self._parts.ring.rewind_chunks)
        return ChunkWork(
            slots=slots,
            speech=torch.from_numpy(speech),
            controls=control_numbers(order.controls, chunk, self._seed),
            noise=draw_noise(config, self._seed, chunk),
        )

    def _restore(self, to_chunk: int) -> None:
        """Go back. Chunks that were dropped before their turn never moved the ring."""
        if self._ring.next_chunk - 1 > to_chunk:
            self._ring = self._ring.rewind(to_chunk)
        if self._failure is not None and self._failure.ends_at(to_chunk):
            self._failure = None
        self._workers.decoding.submit(self._restore_decoder, to_chunk)

    def _release_caches(self) -> None:
        self._denoisers = []
        self._workers.decoding.submit(self._release_states)

    # ---- the decoding worker

    def _start_decoder(self) -> None:
        try:
            self._states[-1] = self._parts.decoder.start(self._avatar.view)
        except Exception as error:
            raise as_engine_error("the diffusion engine could not open a stream", error) from error

    def _release_states(self) -> None:
        self._states.clear()
        del self._parts  # a caller may keep the stream; the model shall not live on for it
        self._released.set_result(None)

    @torch.inference_mode()
    def _decode(self, order: _Order, latent: Tensor, generate_s: float) -> None:
        if order.dropped.is_set():
            return
        begin, chunk = perf_counter(), order.window.chunk_index
        try:
            if self._decoder_failure is not None:
                raise self._decoder_failure
            frames, state = self._parts.decoder.decode(latent, self._states[chunk - 1])
            images = np.array(frames.cpu().numpy())
        except Exception as error:
            self._decoder_failure = self._decoder_failure or error
            self._settle(order, _failed(order, error))
            return
        self._states[chunk] = state
        _forget_old(self._states, chunk, self._parts.ring.rewind_chunks)
        self._settle(order, FrameBlock(chunk, images, generate_s, perf_counter() - begin))

    def _restore_decoder(self, to_chunk: int) -> None:
        for chunk in [c for c in self._states if c > to_chunk]:
            del self._states[chunk]
        if to_chunk in self._states:  # else that chunk itself has failed, and still has
            self._decoder_failure = None


def _check_finite(latent: Tensor) -> None:
    """Refuse a latent that would show as black; also waits for a GPU, so that times are true."""
    broken = latent.numel() - int(latent.isfinite().sum())
    if broken:
        raise ArithmeticError(
            f"{broken} of {latent.numel()} values of the latent are not finite: an overflow, or a "
            "fault of the device; a wider precision tells which"
        )


def _failed(order: _Order, error: Exception) -> EngineError:
    chunk = order.window.chunk_index
    wrapped = as_engine_error(f"the diffusion engine failed at chunk {chunk}", error)
    wrapped.__cause__ = error
    return wrapped


def _forget_old(kept: dict[int, Any], newest: int, depth: int) -> None:
    """Keep what a rewind may need: the start, and the last chunks."""
    for chunk in [c for c in kept if -1 < c < newest - depth]:
        del kept[chunk]
