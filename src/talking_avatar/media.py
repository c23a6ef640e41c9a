"""Speech out of a media file: a path or an open file in, the canonical stream out.

Reads whatever FFmpeg reads (wav, mp3, m4a, ogg, flac, the sound of a video); PyAV is imported
when a file is opened. Never plays, never writes, never awaits: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from talking_avatar.audio import AudioFormat, Samples, SpeechStream
from talking_avatar.errors import AudioFormatError

if TYPE_CHECKING:
    from av.container import InputContainer

MediaFile: TypeAlias = "str | PathLike[str] | IO[bytes]"


def decode_file(file: MediaFile, *, max_s: float = 3 * 3600.0) -> Samples:
    """Decode the first audio stream of a file.

    Args:
        file: A path, or a binary file open for reading.
        max_s: The longest that is taken into memory; 5.8 MB a minute.

    Returns:
        float32 (n,) in [-1, 1], 24 kHz mono: all channels averaged.

    Raises:
        FileNotFoundError: There is none at that path.
        AudioFormatError: FFmpeg cannot read it, it holds no sound, or it is longer than ``max_s``.
    """
    import av

    name = _name_of(file)
    if isinstance(file, (str, PathLike)) and not Path(file).exists():
        raise FileNotFoundError(f"no file at {fspath(file)}")
    try:
        with av.open(fspath(file) if isinstance(file, PathLike) else file) as container:
            return _decode(cast("InputContainer", container), name, max_s)
    except (av.error.FFmpegError, OSError) as error:
        raise AudioFormatError(f"{name} cannot be read as sound: {error.strerror}") from error


def _decode(container: InputContainer, name: str, max_s: float) -> Samples:
    if not container.streams.audio:
        raise AudioFormatError(f"{name} holds no sound: its streams are {_streams(container)}")
    rate = container.streams.audio[0].rate
    speech = SpeechStream(AudioFormat(rate, 1, "float32"))
    parts = []
    for mono in _mono_blocks(container):
        parts.append(speech.push(mono))
        if speech.num_frames_in > max_s * rate:
            raise AudioFormatError(f"{name} is longer than {max_s:g} s: cut it into parts")
    if not speech.num_frames_in:
        raise AudioFormatError(f"{name} holds no samples: its sound is 0 s long")
    return np.concatenate([*parts, speech.flush()])


def _mono_blocks(container: InputContainer) -> Iterator[npt.NDArray[np.float32]]:
    """Give blocks of float32 (n,) at the file's own rate."""
    from av.audio.resampler import AudioResampler

    to_float = AudioResampler(format="fltp")  # the format only: rate and layout stay
    for frame in container.decode(audio=0):
        for converted in to_float.resample(frame):
            planes: npt.NDArray[Any] = converted.to_ndarray()  # (channels, n)
            yield planes.mean(axis=0, dtype=np.float32)


def _name_of(file: MediaFile) -> str:
    return Path(file).name if isinstance(file, (str, PathLike)) else "the file"


def _streams(container: InputContainer) -> str:
    return ", ".join(stream.type for stream in container.streams) or "none"
