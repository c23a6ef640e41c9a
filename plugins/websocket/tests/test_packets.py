"""Binary messages: what is written is read, and anything else is refused or ignored."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talking_avatar_websocket._packets import (
    MEDIA_HEADER_BYTES,
    UPLOAD_HEADER_BYTES,
    BadPacket,
    Flags,
    Kind,
    MediaPacket,
    UploadPacket,
)


def media(**changes: object) -> MediaPacket:
    fields: dict[str, object] = {
        "kind": Kind.VIDEO,
        "codec": "vp8",
        "flags": Flags.KEY | Flags.SPEAKING,
        "sequence": 7,
        "pts_us": -2_500,
        "duration_us": 41_667,
        "turn_id": 3,
        "sent_us": 123_456_789,
        "stream": 2,
        "payload": b"payload",
    }
    return MediaPacket(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_header_is_what_the_document_says() -> None:
    data = media().to_bytes()
    assert MEDIA_HEADER_BYTES == 36
    assert data[:4] == bytes([1, 1, 3, 36])
    assert int.from_bytes(data[4:8]) == 7
    assert int.from_bytes(data[8:16], signed=True) == -2_500
    assert int.from_bytes(data[16:20]) == 41_667
    assert int.from_bytes(data[20:24]) == 3
    assert int.from_bytes(data[24:32]) == 123_456_789
    assert int.from_bytes(data[32:36]) == 2
    assert data[36:] == b"payload"


@given(
    st.sampled_from([(Kind.VIDEO, "vp8"), (Kind.VIDEO, "jpeg"), (Kind.AUDIO, "opus")]),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**40), 2**50),
    st.binary(max_size=50),
)
def test_media_survives_a_round_trip(
    kind: tuple[Kind, str], sequence: int, pts_us: int, payload: bytes
) -> None:
    packet = media(kind=kind[0], codec=kind[1], sequence=sequence, pts_us=pts_us, payload=payload)
    read = MediaPacket.from_bytes(packet.to_bytes())
    assert read == packet


def test_a_longer_header_is_skipped() -> None:
    data = media().to_bytes()
    longer = data[:3] + bytes([40]) + data[4:36] + b"new!" + data[36:]
    read = MediaPacket.from_bytes(longer)
    assert read is not None
    assert bytes(read.payload) == b"payload"


def test_unknown_kinds_codecs_and_flags_are_ignored() -> None:
    data = bytearray(media().to_bytes())
    assert MediaPacket.from_bytes(bytes([9]) + data[1:]) is None
    assert MediaPacket.from_bytes(data[:1] + bytes([99]) + data[2:]) is None
    read = MediaPacket.from_bytes(data[:2] + bytes([0xFF]) + data[3:])
    assert read is not None
    assert read.flags == Flags.KEY | Flags.SPEAKING


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for packet in (MediaPacket, UploadPacket):
        with suppress(BadPacket):
            packet.from_bytes(data)


def test_an_upload_is_what_the_document_says() -> None:
    packet = UploadPacket(kind=Kind.MICROPHONE, codec="opus", sequence=5, payload=b"x")
    assert packet.to_bytes() == bytes([16, 16, 0, 8, 0, 0, 0, 5]) + b"x"
    assert UploadPacket.from_bytes(packet.to_bytes()) == packet
    piece = UploadPacket(kind=Kind.PHOTO, codec=None, sequence=1, payload=b"yz")
    assert piece.to_bytes() == bytes([17, 0, 0, 8, 0, 0, 0, 1]) + b"yz"
    assert UploadPacket.from_bytes(piece.to_bytes()) == piece
    assert UPLOAD_HEADER_BYTES == 8


@pytest.mark.parametrize(
    "data",
    [b"", b"\x10", b"\x10\x11\x00\x08", bytes([16, 17, 0, 8, 0, 0, 0, 0]), b"\x10\x11\x00\xffab"],
)
def test_a_short_upload_is_refused(data: bytes) -> None:
    with pytest.raises(BadPacket):
        UploadPacket.from_bytes(data)
