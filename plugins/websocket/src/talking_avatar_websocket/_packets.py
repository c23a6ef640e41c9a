"""Binary messages: a fixed header and a payload. Bytes in, values out, and back.

Never interprets a payload, never raises anything but `BadPacket` on what a peer sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Literal, TypeAlias

VideoCodec: TypeAlias = Literal["vp8", "h264", "jpeg"]
AudioCodec: TypeAlias = Literal["opus", "pcm"]
Bytes: TypeAlias = "bytes | bytearray | memoryview"


class Kind(IntEnum):
    """First byte of a binary message."""

    VIDEO = 1
    AUDIO = 2
    MICROPHONE = 16
    PHOTO = 17


class Flags(IntFlag):
    """Third byte; unknown bits are ignored."""

    KEY = 1
    """Can be decoded without what came before. Set on every audio packet."""
    SPEAKING = 2
    """Speech of a turn that is still wanted."""


CODEC_IDS: dict[VideoCodec | AudioCodec, int] = {
    "vp8": 1,
    "h264": 2,
    "jpeg": 3,
    "opus": 16,
    "pcm": 17,
}
_CODEC_NAMES = {number: name for name, number in CODEC_IDS.items()}

_MEDIA = struct.Struct(">BBBBIqIIQI")
_UPLOAD = struct.Struct(">BBBBI")
MEDIA_HEADER_BYTES = _MEDIA.size
"""36: kind, codec, flags, header length, sequence, pts, duration, turn, sent, stream."""
UPLOAD_HEADER_BYTES = _UPLOAD.size
"""8: kind, codec, flags, header length, sequence."""


class BadPacket(ValueError):  # noqa: N818
    """The bytes are no packet; the text says why and holds none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPacket:
    """One encoded frame, or one packet of sound, from server to client.

    Attributes:
        kind: `Kind.VIDEO` or `Kind.AUDIO`.
        codec: As announced by the `stream` message.
        flags: See `Flags`.
        sequence: Counts per stream and kind; a gap is something that this client did not get.
        pts_us: When it is shown or heard, on the stream's timeline.
        duration_us: For how long.
        turn_id: 0 between turns.
        sent_us: The server's clock when the frame was handed to the transport.
        stream: Number of the stream, from the `stream` message.
        payload: What the codec's decoder takes.
    """

    kind: Kind
    codec: VideoCodec | AudioCodec
    flags: Flags
    sequence: int
    pts_us: int
    duration_us: int
    turn_id: int
    sent_us: int
    stream: int
    payload: Bytes

    @property
    def is_key(self) -> bool:
        """Whether it can be decoded without what came before."""
        return bool(self.flags & Flags.KEY)

    @property
    def is_speaking(self) -> bool:
        """Whether it is speech of a turn that is still wanted."""
        return bool(self.flags & Flags.SPEAKING)

    def to_bytes(self) -> bytes:
        """Give the message."""
        header = _MEDIA.pack(
            self.kind,
            CODEC_IDS[self.codec],
            self.flags,
            MEDIA_HEADER_BYTES,
            self.sequence & 0xFFFFFFFF,
            self.pts_us,
            self.duration_us,
            self.turn_id & 0xFFFFFFFF,
            self.sent_us,
            self.stream,
        )
        return header + bytes(self.payload)

    @classmethod
    def from_bytes(cls, data: bytes) -> MediaPacket | None:
        """Read a message; None if it is of a kind or codec that this version does not know.

        Raises:
            BadPacket: It is too short.
        """
        header_bytes = _header_bytes(data, MEDIA_HEADER_BYTES, (Kind.VIDEO, Kind.AUDIO))
        if header_bytes is None:
            return None
        kind, codec, flags, _, sequence, pts, duration, turn, sent, stream = _MEDIA.unpack_from(
            data
        )
        name = _CODEC_NAMES.get(codec)
        if name is None:
            return None
        return cls(
            kind=Kind(kind),
            codec=name,
            flags=Flags(flags & (Flags.KEY | Flags.SPEAKING)),
            sequence=sequence,
            pts_us=pts,
            duration_us=duration,
            turn_id=turn,
            sent_us=sent,
            stream=stream,
            payload=memoryview(data)[header_bytes:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPacket:
    """Sound of a microphone, or a piece of a photo, from client to server.

    Attributes:
        kind: `Kind.MICROPHONE` or `Kind.PHOTO`.
        codec: Of the sound; None for a photo.
        sequence: Counts from 0 since the message that began it.
        payload: One Opus packet, whole PCM samples, or bytes of the image file.
    """

    kind: Kind
    codec: AudioCodec | None
    sequence: int
    payload: Bytes

    def to_bytes(self) -> bytes:
        """Give the message."""
        codec = 0 if self.codec is None else CODEC_IDS[self.codec]
        sequence = self.sequence & 0xFFFFFFFF
        header = _UPLOAD.pack(self.kind, codec, 0, UPLOAD_HEADER_BYTES, sequence)
        return header + bytes(self.payload)

    @classmethod
    def from_bytes(cls, data: bytes) -> UploadPacket | None:
        """Read a message; None if it is of a kind that this version does not know.

        Raises:
            BadPacket: It is too short, empty, or of an unknown codec.
        """
        header_bytes = _header_bytes(data, UPLOAD_HEADER_BYTES, (Kind.MICROPHONE, Kind.PHOTO))
        if header_bytes is None:
            return None
        kind, codec, _, _, sequence = _UPLOAD.unpack_from(data)
        payload = memoryview(data)[header_bytes:]
        if not payload:
            raise BadPacket("no payload")
        if kind == Kind.PHOTO:
            return cls(kind=Kind.PHOTO, codec=None, sequence=sequence, payload=payload)
        name = _CODEC_NAMES.get(codec)
        if name != "opus" and name != "pcm":
            raise BadPacket("unknown codec of sound")
        return cls(kind=Kind.MICROPHONE, codec=name, sequence=sequence, payload=payload)


def _header_bytes(data: bytes, minimum: int, kinds: tuple[Kind, ...]) -> int | None:
    """Give where the payload begins; a longer header is of a later version, and skipped."""
    if len(data) < 4:
        raise BadPacket(f"{len(data)} bytes are no header")
    if data[0] not in kinds:
        return None
    if not minimum <= data[3] <= len(data):
        raise BadPacket(f"a header of {data[3]} bytes in a message of {len(data)}")
    return data[3]
