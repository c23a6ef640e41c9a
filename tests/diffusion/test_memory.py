"""Memory of a long stream, decoder included, as the operating system sees it.

The stream runs in a process of its own with one malloc arena: glibc gives every thread an arena in
pieces of 64 MB, and how many of them are resident moves by some 250 MB from minute to minute though
nothing grows. Each look comes when no chunk is in the making, whose buffers would be counted by
chance, and after free memory was given back. So a leak of one decoder state (2.6 MB) in 100 chunks
fails here.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import psutil
import pytest

from talking_avatar.config import DiffusionConfig
from talking_avatar.engine import open_engine
from talking_avatar.engine.base import ChunkTicket, Controls, SpeechWindow

CHUNKS = 1_000
STEP = 50
ALLOWED_MB = 16
"""From the first fifth on."""


def _free_memory_giver() -> Callable[[], object]:
    """Give glibc's ``malloc_trim``; nothing where the C library has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: trim(0)) if trim else (lambda: None)


async def resident_mb(chunks: int) -> list[float]:
    """Run one stream with its pipeline full, a rewind every so often; look every `STEP` chunks."""
    engine = await open_engine(
        DiffusionConfig(model="tiny", weights="random", devices=("cpu", "cpu"))
    )
    avatar = await engine.prepare(str(files("talking_avatar.assets") / "portrait.jpg"))
    stream = await engine.open_stream(avatar)
    size = engine.info.chunk_samples + engine.info.lookahead_samples
    samples = np.zeros(size, np.float32)
    give_back = _free_memory_giver()
    process, seen, waiting = psutil.Process(), list[float](), list[ChunkTicket]()
    chunk = made = 0
    while made < chunks:
        waiting.append(
            stream.submit(SpeechWindow(chunk, samples, size, speaking=False), Controls())
        )
        if len(waiting) == engine.info.pipeline_depth:
            await waiting.pop(0).frames()
        chunk += 1
        made += 1
        if made % STEP == 0:
            for ticket in waiting:
                await ticket.frames()
            gc.collect()
            give_back()
            seen.append(process.memory_info().rss / 2**20)
            await stream.rewind(chunk - 4)
            chunk -= 3
            waiting.clear()
    await engine.aclose()
    return seen


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_memory_is_flat_with_the_decoder() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=1_100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = [float(word) for word in done.stdout.split()]
    settled = seen[len(seen) // 5 :]
    assert len(settled) == CHUNKS // STEP * 4 // 5
    assert max(settled) - settled[0] < ALLOWED_MB, seen


if __name__ == "__main__":
    print(*(f"{mb:.0f}" for mb in asyncio.run(resident_mb(CHUNKS))))
