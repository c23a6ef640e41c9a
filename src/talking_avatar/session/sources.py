"""Whatever `say` takes -> pieces of PCM in a stated format.

Never guesses a format: raw PCM needs a sample rate, an array's dtype states its encoding, and a
media file states its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from talking_avatar.audio import AudioFormat, Encoding, Pcm
from talking_avatar.engine.base import SAMPLE_RATE
from talking_avatar.errors import AudioFormatError
from talking_avatar.media import decode_file

Speech: TypeAlias = "Pcm | str | PathLike[str] | AsyncIterable[Pcm]"
"""PCM bytes, an array, the path of a media file, or an async iterator of PCM."""

SLICE_SAMPLES = 12_000
"""Half a second at 24 kHz is converted at once: 1 ms of the event loop's time at most."""


def stated_format(sample_rate: int | None, channels: int, encoding: Encoding) -> AudioFormat:
    """Give what the caller stated.

    Raises:
        AudioFormatError: Nobody stated the sample rate.
        ValueError: It is no format.
    """
    if sample_rate is None:
        raise AudioFormatError(
            "PCM does not say its sample rate: pass sample_rate=... (and channels, encoding)"
        )
    return AudioFormat(sample_rate, channels, encoding)


def format_of(data: Pcm, stated: AudioFormat) -> AudioFormat:
    """Give the format of a piece of PCM: as stated, but an array's dtype and shape know better.

    Raises:
        AudioFormatError: The array is no sound.
    """
    if not isinstance(data, np.ndarray) or data.dtype == np.uint8:
        return stated
    own = AudioFormat.of_array(data, stated.sample_rate)
    return replace(own, channels=max(stated.channels, own.channels))


def slices(data: Pcm, format: AudioFormat) -> list[Pcm]:
    """Cut PCM into pieces that convert in about a millisecond each."""
    if isinstance(data, np.ndarray):
        step = SLICE_SAMPLES * (format.channels if data.ndim == 1 else 1)
        return [data[at : at + step] for at in range(0, len(data), step)]
    view = memoryview(data)
    step = SLICE_SAMPLES * format.frame_bytes
    return [view[at : at + step] for at in range(0, len(view), step)]


async def pieces(speech: Speech) -> AsyncGenerator[Pcm, None]:
    """Give the pieces of anything `say` takes; a media file as 24 kHz float32."""
    if isinstance(speech, (str, PathLike)):
        samples: npt.NDArray[Any] = await asyncio.to_thread(decode_file, speech)
        yield samples
    elif isinstance(speech, AsyncIterable):
        async for piece in speech:
            yield piece
    elif isinstance(speech, (bytes, bytearray, memoryview, np.ndarray)):
        yield speech
    else:
        raise TypeError(
            f"{type(speech).__name__} is no speech: pass bytes, an array, the path of a media "
            "file or an async iterator of PCM"
        )


def rate_of(speech: Speech, sample_rate: int | None) -> int | None:
    """Give the sample rate of the pieces: a decoded file has the canonical one."""
    return SAMPLE_RATE if isinstance(speech, (str, PathLike)) else sample_rate
