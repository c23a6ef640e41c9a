"""Sound into packets, and a microphone's packets into PCM.

Counts absolute samples: packets do not end where frames do. Never awaits; an encoder belongs to one
thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from talking_avatar_websocket._packets import AudioCodec, Bytes

if TYPE_CHECKING:
    from av import AudioCodecContext

AUDIO_CODECS: tuple[AudioCodec, ...] = ("opus", "pcm")
OPUS_FRAME_MS = 10
"""At 20 ms the end of each frame of picture would wait for up to 20 ms of sound of the next."""
OPUS_BPS = 48_000
"""Transparent for speech; 6 ms of CPU a second at 10 ms a packet (Xeon core, December 2026)."""
MICROPHONE_RATE = 48_000
"""Of decoded Opus."""
_MAX_OPUS_BYTES = 4_000
"""More than any Opus packet of one stream: 1,275 bytes for each of at most 3 frames of 20 ms."""

Pcm16 = npt.NDArray[np.int16]


class BadSound(ValueError):  # noqa: N818
    """A microphone's packet cannot be decoded."""


@dataclass(frozen=True, slots=True)
class EncodedSound:
    """One packet.

    Attributes:
        data: What the decoder takes.
        start: Of the first sample that it decodes to, in samples on the timeline. The encoder's
            delay is counted, so that it is a little below 0 at first.
        num_samples: That it decodes to.
    """

    data: bytes
    start: int
    num_samples: int


class SoundEncoder(Protocol):
    """Encodes one stream's sound."""

    def encode(self, pcm: Pcm16, start: int) -> list[EncodedSound]:
        """Encode samples from ``start`` on the timeline; what does not fill a packet waits.

        A gap before ``start`` is filled with silence if it is short, else skipped.
        """
        ...

    def clear(self) -> None:
        """Silence what waits to fill a packet: it was cut."""
        ...


class OpusEncoder:
    """Opus packets of 10 ms.

    Args:
        sample_rate: Of the PCM: 24,000 or another of Opus's rates.
    """

    def __init__(self, sample_rate: int) -> None:
        from av import CodecContext

        context: AudioCodecContext = CodecContext.create("libopus", "w")
        context.sample_rate = sample_rate
        context.layout, context.format = "mono", "s16"
        context.time_base = Fraction(1, sample_rate)
        context.bit_rate = OPUS_BPS
        # "lowdelay": 2.5 ms of look-ahead instead of 6.5
        context.options = {"application": "lowdelay", "frame_duration": str(OPUS_FRAME_MS)}
        context.open()
        self._context = context
        self._rate = sample_rate
        self._delay = _pre_skip(context.extradata) * sample_rate // 48_000
        self._num_encoded = 0
        self._frame = sample_rate * OPUS_FRAME_MS // 1_000
        self._waiting: Pcm16 = np.zeros(0, np.int16)
        self._next: int | None = None

    def encode(self, pcm: Pcm16, start: int) -> list[EncodedSound]:
        self._bridge(start)
        self._waiting = np.concatenate([self._waiting, pcm])
        packets: list[EncodedSound] = []
        while len(self._waiting) >= self._frame:
            head, self._waiting = self._waiting[: self._frame], self._waiting[self._frame :]
            packets += self._encode(head)
        return packets

    def _bridge(self, start: int) -> None:
        if self._next is None:
            self._next = start
        missing = start - self._next - len(self._waiting)
        if 0 < missing <= self._rate // 2:
            self._waiting = np.concatenate([self._waiting, np.zeros(missing, np.int16)])
        elif missing:
            self._waiting = self._waiting[:0]
            self._next = start

    def _encode(self, pcm: Pcm16) -> list[EncodedSound]:
        from av import AudioFrame

        assert self._next is not None
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(pcm)[None], "s16", "mono")
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._num_encoded  # FFmpeg's own count must not jump; the timeline may
        self._num_encoded += len(pcm)
        start = self._next - self._delay
        self._next += len(pcm)
        return [
            EncodedSound(bytes(packet), start, self._frame)
            for packet in self._context.encode(frame)
        ]

    def clear(self) -> None:
        self._waiting = np.zeros_like(self._waiting)


def _pre_skip(opus_head: bytes | None) -> int:
    """Give the encoder's delay in samples at 48 kHz; RFC 7845, section 5.1."""
    assert opus_head is not None
    return int.from_bytes(opus_head[10:12], "little")


class PcmEncoder:
    """Samples as they are, little-endian."""

    def encode(self, pcm: Pcm16, start: int) -> list[EncodedSound]:
        return [EncodedSound(pcm.astype("<i2").tobytes(), start, len(pcm))]

    def clear(self) -> None:
        return


def open_sound_encoder(codec: AudioCodec, sample_rate: int) -> SoundEncoder:
    """Make an encoder."""
    return OpusEncoder(sample_rate) if codec == "opus" else PcmEncoder()


class MicrophoneDecoder:
    """Decodes the packets of one `audio_start`.

    About 0.1 ms of CPU for 20 ms of Opus: little enough for the event loop.

    Args:
        codec: Of the packets.
        sample_rate: Of PCM; Opus always gives 48 kHz.
    """

    def __init__(self, codec: AudioCodec, sample_rate: int) -> None:
        self.sample_rate = sample_rate if codec == "pcm" else MICROPHONE_RATE
        self._context: AudioCodecContext | None = None
        if codec == "opus":
            from av import CodecContext

            context: AudioCodecContext = CodecContext.create("libopus", "r")
            context.sample_rate = MICROPHONE_RATE
            context.layout = "mono"
            self._context = context

    def decode(self, payload: Bytes) -> Pcm16:
        """Give int16 samples, mono.

        Raises:
            BadSound: The packet is broken.
        """
        if self._context is None:
            return np.frombuffer(payload, "<i2").astype(np.int16)
        from av import Packet
        from av.error import FFmpegError

        if len(payload) > _MAX_OPUS_BYTES:
            raise BadSound(f"an Opus packet of {len(payload)} bytes")
        try:
            frames = self._context.decode(Packet(bytes(payload)))
        except FFmpegError:
            raise BadSound("an Opus packet that cannot be decoded") from None
        blocks = [_to_mono(frame.to_ndarray()) for frame in frames]
        return np.concatenate([np.zeros(0, np.int16), *blocks])


def _to_mono(samples: npt.NDArray[np.generic]) -> Pcm16:
    """Take the first channel of s16 or float samples."""
    first = np.asarray(samples[0])
    if first.dtype != np.int16:
        first = np.clip(first.astype(np.float32), -1, 1) * 32_767
    return np.asarray(first, np.int16)
