"""Any PCM in, the canonical speech stream out: float32 in [-1, 1], 24 kHz, mono.

Takes bytes or arrays in a format that the caller states; gives samples whose number is exact:
after `SpeechStream.flush`, ``num_samples_out == round(num_frames_in * 24_000 / sample_rate)``.
Never guesses a format, never opens a file (`talking_avatar.media` does), never awaits.

A *frame* here is one sample of every channel at the same instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import soxr
import structlog

from talking_avatar.engine.base import SAMPLE_RATE
from talking_avatar.errors import AudioFormatError
from talking_avatar.plausibility import Plausibility, Suspicion

Encoding: TypeAlias = Literal["int16", "int32", "float32", "mulaw", "alaw"]
"""How one sample is written; little-endian. ``mulaw`` and ``alaw`` are G.711, 8 bits."""
Samples: TypeAlias = npt.NDArray[np.float32]
Pcm: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"

_DTYPES: Final[dict[Encoding, np.dtype[Any]]] = {
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "float32": np.dtype("<f4"),
    "mulaw": np.dtype("u1"),
    "alaw": np.dtype("u1"),
}

_log = structlog.stdlib.get_logger("talking_avatar.audio")


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """What a caller states of its PCM.

    Attributes:
        sample_rate: Frames a second, 4,000 to 384,000.
        channels: Interleaved channels, 1 to 32; they are averaged.
        encoding: See `Encoding`.

    Raises:
        ValueError: One of them is none of these.
    """

    sample_rate: int = SAMPLE_RATE
    channels: int = 1
    encoding: Encoding = "int16"

    def __post_init__(self) -> None:
        if not isinstance(self.sample_rate, Integral) or not 4_000 <= self.sample_rate <= 384_000:
            raise ValueError(
                f"sample_rate {self.sample_rate!r} must be a whole number, 4000 to 384000"
            )
        if not 1 <= self.channels <= 32:
            raise ValueError(f"channels {self.channels} must be 1 to 32")
        if self.encoding not in get_args(Encoding):
            raise ValueError(
                f"encoding {self.encoding!r} must be one of {', '.join(get_args(Encoding))}"
            )

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return _DTYPES[self.encoding].itemsize * self.channels

    @classmethod
    def of_array(cls, array: npt.NDArray[Any], sample_rate: int) -> AudioFormat:
        """State the format of an array by its dtype and shape, (frames,) or (frames, channels).

        Raises:
            AudioFormatError: The dtype is neither int16, int32 nor a float, or there are more
                than two axes.
        """
        encoding: Encoding
        match array.dtype.kind, array.dtype.itemsize:
            case "i", 2:
                encoding = "int16"
            case "i", 4:
                encoding = "int32"
            case "f", _:
                encoding = "float32"
            case _:
                raise AudioFormatError(
                    f"an array of {array.dtype} is no sound known here: pass int16, int32 or "
                    "float in [-1, 1], or state an AudioFormat (uint8 may be mulaw or alaw)"
                )
        if array.ndim not in (1, 2):
            raise AudioFormatError(
                f"an array of shape {array.shape} is no sound: (frames,) or (frames, channels)"
            )
        if array.ndim == 2 and not 1 <= array.shape[1] <= 32:
            raise AudioFormatError(
                f"an array of shape {array.shape} would have {array.shape[1]} channels, and 32 are "
                "the most: is it (channels, frames)? Pass array.T"
            )
        return cls(sample_rate, 1 if array.ndim == 1 else array.shape[1], encoding)


class SpeechStream:
    """Converts one turn's PCM as it arrives; make one a turn.

    At 24 kHz nothing is held back. At other rates the resampler (soxr, HQ) holds part of what it
    has until more comes or the stream is flushed: at most 38 ms at 16 and 48 kHz, 42 ms at 22.05
    and 44.1, 73 ms at 8, 84 ms at 11.025 (measured with soxr 1.1 in 20 ms chunks). Chunk
    borders, their sizes and pauses between them change no sample.

    Args:
        format: What the caller states.
    """

    def __init__(self, format: AudioFormat) -> None:
        self.format = format
        self._partial = b""
        self._num_frames_in = 0
        self._num_samples_out = 0
        self._is_flushed = False
        self._plausibility: Plausibility | None = Plausibility(format.sample_rate)
        self._resampler = (
            None
            if format.sample_rate == SAMPLE_RATE
            else soxr.ResampleStream(
                format.sample_rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ"
            )
        )

    @property
    def num_frames_in(self) -> int:
        """Whole frames taken so far."""
        return self._num_frames_in

    @property
    def num_samples_out(self) -> int:
        """Samples given so far, at 24 kHz."""
        return self._num_samples_out

    def push(self, data: Pcm) -> Samples:
        """Take a chunk of any size and give what is ready of it.

        Args:
            data: Bytes in the stated format; a frame that they cut in two is completed by the next
                chunk. Or an array of the stated encoding, shape (frames,) or (frames, channels);
                a 1-D array of several channels is interleaved. Float arrays of any width do for
                ``float32``.

        Returns:
            float32 (n,), 24 kHz; n may be 0. The caller owns it.

        Raises:
            AudioFormatError: A sample is NaN or infinite, or the array does not fit the format.
                Nothing of the chunk was taken.
            ValueError: The stream was flushed.
        """
        if self._is_flushed:
            raise ValueError("the stream was flushed: make a new SpeechStream for the next turn")
        pcm, partial = self._split(data)
        mono = self._to_mono(pcm)
        self._partial = partial
        self._judge(pcm, mono)
        self._num_frames_in += len(mono)
        return self._give(self._resample(mono))

    def flush(self) -> Samples:
        """End the stream and give all that was held back.

        A last frame that was never completed is dropped, with a warning event. Flushing twice
        gives nothing more.

        Returns:
            float32 (n,), 24 kHz.
        """
        if self._is_flushed:
            return np.zeros(0, np.float32)
        self._is_flushed = True
        if self._plausibility:
            self._warn(self._plausibility.at_end(self._num_frames_in, len(self._partial)))
        if self._resampler is None:
            return np.zeros(0, np.float32)
        total = round(Fraction(self._num_frames_in * SAMPLE_RATE, self.format.sample_rate))
        # Two frames of silence more, cut off again: soxr rounds its own total, we round ours.
        tail = self._resampler.resample_chunk(np.zeros(2, np.float32), last=True)
        return self._give(_clipped(tail)[: total - self._num_samples_out])

    def _split(self, data: Pcm) -> tuple[npt.NDArray[Any], bytes]:
        """Give whole frames as (frames, channels) in their encoding, and the bytes left over."""
        dtype, channels = _DTYPES[self.format.encoding], self.format.channels
        if isinstance(data, np.ndarray):
            self._check_array(data)
            if self._partial:
                raise AudioFormatError(
                    f"an array follows bytes that end {len(self._partial)} bytes into a frame"
                )
            with np.errstate(over="ignore"):  # a float64 beyond float32 is refused as infinite
                return data.astype(dtype, copy=False).reshape(-1, channels), b""
        if isinstance(data, memoryview):
            data = data.tobytes()
        raw = self._partial + bytes(data) if self._partial else data
        num_frames = len(raw) // self.format.frame_bytes
        pcm = np.frombuffer(raw, dtype, num_frames * channels).reshape(-1, channels)
        return pcm, bytes(raw[num_frames * self.format.frame_bytes :])

    def _check_array(self, array: npt.NDArray[Any]) -> None:
        dtype, channels = _DTYPES[self.format.encoding], self.format.channels
        fits = array.dtype.kind == dtype.kind and (
            dtype.kind == "f" or array.dtype.itemsize == dtype.itemsize
        )
        if not fits:
            raise AudioFormatError(
                f"an array of {array.dtype} came where {self.format.encoding} ({dtype.name}) was "
                "stated: convert it, or state its own format"
            )
        if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != channels):
            raise AudioFormatError(
                f"an array of shape {array.shape} came where {channels} channels were stated: "
                f"pass (frames, {channels})"
            )
        if array.size % channels:
            raise AudioFormatError(
                f"{array.size} interleaved samples do not divide into {channels} channels"
            )

    def _to_mono(self, pcm: npt.NDArray[Any]) -> Samples:
        match self.format.encoding:
            case "int16":
                samples = pcm * np.float32(1 / 2**15)
            case "int32":
                samples = (pcm * (1 / 2**31)).astype(np.float32)
            case "float32":
                self._refuse_non_finite(pcm)
                samples = pcm
            case "mulaw":
                samples = _MULAW[pcm]
            case "alaw":
                samples = _ALAW[pcm]
        samples = _clipped(samples)
        return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)

    def _refuse_non_finite(self, pcm: npt.NDArray[Any]) -> None:
        is_finite = np.isfinite(pcm)
        if is_finite.all():
            return
        frame, channel = (int(i) for i in np.argwhere(~is_finite)[0])
        index = self._num_frames_in + frame
        raise AudioFormatError(
            f"sample {index} ({index / self.format.sample_rate:.3f} s), channel {channel}, is "
            f"{pcm[frame, channel]}: no sound has that value. Are the samples really float32?"
        )

    def _resample(self, mono: Samples) -> Samples:
        if self._resampler is None or not len(mono):
            return mono
        return _clipped(self._resampler.resample_chunk(np.ascontiguousarray(mono)))

    def _give(self, samples: Samples) -> Samples:
        self._num_samples_out += len(samples)
        return samples

    def _judge(self, pcm: npt.NDArray[Any], mono: Samples) -> None:
        if self._plausibility:
            self._warn(self._plausibility.look_at(pcm, mono))

    def _warn(self, suspicion: Suspicion | None) -> None:
        """Log one event a stream, then look no more."""
        if suspicion is None:
            return
        self._plausibility = None
        _log.warning(
            "audio_implausible",
            reason=suspicion.reason,
            hint=suspicion.hint,
            sample_rate=self.format.sample_rate,
            channels=self.format.channels,
            encoding=self.format.encoding,
        )


def to_int16(samples: Samples) -> npt.NDArray[np.int16]:
    """Round float samples in [-1, 1] to int16: ``1.0`` gives 32767, ``-1.0`` gives -32768.

    The scale is 32,768, the inverse of reading int16, so that int16 in is the same int16 out.
    """
    scaled = np.rint(samples * np.float32(2**15))
    clipped: npt.NDArray[np.int16] = np.clip(scaled, -(2**15), 2**15 - 1).astype(np.int16)
    return clipped


def _clipped(samples: Samples) -> Samples:
    return np.clip(samples, np.float32(-1), np.float32(1))


def _mulaw_table() -> Samples:
    """ITU-T G.711 mu-law: 8 bits, inverted; sign, 3 bits of exponent, 4 of mantissa; bias 132."""
    code = ~np.arange(256, dtype=np.uint8)
    magnitude = (((code & 0x0F).astype(np.int32) << 3) + 132 << ((code >> 4) & 7)) - 132
    return (np.where(code & 0x80, -magnitude, magnitude) / 2**15).astype(np.float32)


def _alaw_table() -> Samples:
    """ITU-T G.711 A-law: even bits inverted; exponent 0 is linear, the others have a hidden 1."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent = ((code >> 4) & 7).astype(np.int32)
    mantissa = ((code & 0x0F).astype(np.int32) << 4) + 8
    magnitude = np.where(exponent == 0, mantissa, mantissa + 256 << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) / 2**15).astype(np.float32)


_MULAW: Final = _mulaw_table()
_ALAW: Final = _alaw_table()
