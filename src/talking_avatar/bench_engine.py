"""Measures an engine by itself, with no session, clock or transport around it.

Takes a number of seconds of speech. Gives a frozen report, in CPU time as well as wall time: the
first hardly changes on a busy machine. Never prints, never asserts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.config import EngineConfig
from talking_avatar.engine import open_engine
from talking_avatar.engine.base import (
    FPS,
    AvatarStream,
    ChunkTicket,
    Controls,
    EngineInfo,
    Photo,
    SpeechWindow,
)
from talking_avatar.media import decode_file


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """An engine working as fast as it can, its pipeline full.

    Attributes:
        engine: Its name.
        width, height: Pixels of a frame.
        num_frames: Measured.
        prepare_s: Wall seconds to open it and make the photo a character.
        cpu_ms_per_frame: CPU time of the whole process.
        ms_per_frame: Wall time.
        chunk_ms_p50, chunk_ms_p95, chunk_ms_max: Wall time between two chunks.
        real_time_factor: Seconds of picture per wall second.
        real_time_factor_of_a_core: Seconds of picture per CPU second.
    """

    engine: str
    width: int
    height: int
    num_frames: int
    prepare_s: float
    cpu_ms_per_frame: float
    ms_per_frame: float
    chunk_ms_p50: float
    chunk_ms_p95: float
    chunk_ms_max: float
    real_time_factor: float
    real_time_factor_of_a_core: float


async def run_engine(
    seconds: float = 10.0,
    *,
    engine: str | EngineConfig = "portrait",
    photo: Photo | None = None,
) -> EngineReport:
    """Render the bundled sentence again and again.

    Args:
        seconds: Of picture to measure, after one second to warm up.
        engine: Its name or configuration.
        photo: None: the bundled portrait.
    """
    begun = time.perf_counter()
    opened = await open_engine(engine)
    try:
        avatar = await opened.prepare(portrait_path() if photo is None else photo)
        prepare_s = time.perf_counter() - begun
        stream = await opened.open_stream(avatar)
        info = opened.info
        num_warmup, num_chunks = (max(1, round(s / info.chunk_s)) for s in (1.0, seconds))
        windows = await asyncio.to_thread(_windows, info, num_warmup + num_chunks)
        try:
            await _generate(stream, info, windows[:num_warmup])
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            ends = [wall_s, *await _generate(stream, info, windows[num_warmup:])]
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        finally:
            await stream.aclose()
    finally:
        await opened.aclose()
    num_frames = num_chunks * info.frames_per_chunk
    p50, p95, most = np.percentile(np.diff(ends) * 1e3, [50, 95, 100])
    return EngineReport(
        engine=info.name,
        width=info.width,
        height=info.height,
        num_frames=num_frames,
        prepare_s=prepare_s,
        cpu_ms_per_frame=cpu_s / num_frames * 1e3,
        ms_per_frame=wall_s / num_frames * 1e3,
        chunk_ms_p50=float(p50),
        chunk_ms_p95=float(p95),
        chunk_ms_max=float(most),
        real_time_factor=num_frames / FPS / wall_s,
        real_time_factor_of_a_core=num_frames / FPS / cpu_s,
    )


def _windows(info: EngineInfo, num_chunks: int) -> list[SpeechWindow]:
    """Cut the sentence, repeated, into the windows of consecutive chunks."""
    length = info.chunk_samples + info.lookahead_samples
    sentence = decode_file(speech_path())
    speech = np.resize(sentence, num_chunks * info.chunk_samples + info.lookahead_samples)
    return [
        SpeechWindow(
            chunk_index=index,
            samples=speech[index * info.chunk_samples :][:length],
            num_known=length,
            speaking=True,
        )
        for index in range(num_chunks)
    ]


async def _generate(
    stream: AvatarStream, info: EngineInfo, windows: list[SpeechWindow]
) -> list[float]:
    """Keep the pipeline full; give when each chunk was there."""
    waiting: deque[ChunkTicket] = deque()
    ends = []
    for window in windows:
        if len(waiting) == info.pipeline_depth:
            await waiting.popleft().frames()
            ends.append(time.perf_counter())
        waiting.append(stream.submit(window, Controls()))
    for ticket in waiting:
        await ticket.frames()
        ends.append(time.perf_counter())
    return ends
