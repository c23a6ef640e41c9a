"""What encoders make can be decoded, and is what went in."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from talking_avatar import MediaInfo
from talking_avatar_websocket._decoding import StreamDecoder
from talking_avatar_websocket._packets import Flags, Kind, MediaPacket, VideoCodec
from talking_avatar_websocket._sound import BadSound, MicrophoneDecoder, OpusEncoder, PcmEncoder
from talking_avatar_websocket._video import VIDEO_CODECS, codec_string, open_video_encoder

WIDTH, HEIGHT = 128, 192


def media(pixel_format: str = "i420", width: int = WIDTH, height: int = HEIGHT) -> MediaInfo:
    return MediaInfo(
        width=width,
        height=height,
        pixel_format=pixel_format,  # type: ignore[arg-type]
        fps=24,
        sample_rate=24_000,
        clock="live",
    )


def scene(shift: int) -> np.ndarray:
    """Give a smooth RGB picture that moves."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    red = 128 + 80 * np.sin((x + shift) / 20)
    green = 128 + 80 * np.cos(y / 25)
    return np.stack([red, green, np.full_like(red, 90.0)], axis=-1).astype(np.uint8)


def i420(image: np.ndarray) -> np.ndarray:
    import cv2

    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420), np.uint8)


def packet(codec: VideoCodec, data: bytes, index: int, *, is_key: bool) -> MediaPacket:
    return MediaPacket(
        kind=Kind.VIDEO,
        codec=codec,
        flags=Flags.KEY if is_key else Flags(0),
        sequence=index,
        pts_us=0,
        duration_us=0,
        turn_id=0,
        sent_us=0,
        stream=1,
        payload=data,
    )


@pytest.mark.parametrize("pixel_format", ["i420", "rgb24"])
@pytest.mark.parametrize("codec", VIDEO_CODECS)
def test_pictures_come_back(codec: VideoCodec, pixel_format: str) -> None:
    encoder = open_video_encoder(codec, media(pixel_format), 800)
    decoder = StreamDecoder()
    for index in range(8):
        wanted = scene(index)
        image = i420(wanted) if pixel_format == "i420" else wanted
        encoded = encoder.encode(image, 100 + index, is_key=index == 5)
        assert encoded is not None
        assert encoded.is_key is (index in (0, 5) or codec == "jpeg")
        got = decoder.picture(packet(codec, encoded.data, index, is_key=encoded.is_key))
        assert got is not None
        error = np.abs(got.astype(int) - wanted.astype(int)).mean()
        assert error < 6, f"{codec}, frame {index}: mean error {error:.1f} of 255"


def test_a_decoder_waits_for_a_key_frame_after_a_gap() -> None:
    encoder = open_video_encoder("vp8", media(), 800)
    decoder = StreamDecoder()
    got = []
    for index in range(8):
        encoded = encoder.encode(i420(scene(index)), index, is_key=index == 5)
        assert encoded is not None
        if index != 2:
            got.append(
                decoder.picture(packet("vp8", encoded.data, index, is_key=encoded.is_key))
                is not None
            )
    assert got == [True, True, False, False, True, True, True]


@pytest.mark.parametrize(("size", "level"), [((704, 1088), 0x1F), ((1280, 1280), 0x28)])
def test_the_codec_string_is_what_the_bitstream_says(size: tuple[int, int], level: int) -> None:
    info = media(width=size[0], height=size[1])
    encoded = open_video_encoder("h264", info, 1_500).encode(
        np.full((size[1] * 3 // 2, size[0]), 128, np.uint8), 0, is_key=True
    )
    assert encoded is not None
    start = encoded.data.index(b"\x00\x00\x01\x67") + 4
    profile, constraints, level_idc = encoded.data[start : start + 3]
    assert (profile, level_idc) == (66, level)
    assert codec_string("h264", info) == f"avc1.{profile:02x}{constraints:02x}{level_idc:02x}"
    assert codec_string("vp8", info) == "vp8"
    assert codec_string("jpeg", info) is None


def test_no_encoder_holds_a_frame_back() -> None:
    for codec in VIDEO_CODECS:
        encoder = open_video_encoder(codec, media(), 800)
        for index in range(4):
            assert encoder.encode(i420(scene(index)), index, is_key=False) is not None


def tone(num_samples: int, rate: int = 24_000) -> np.ndarray:
    return (8_000 * np.sin(2 * np.pi * 440 * np.arange(num_samples) / rate)).astype(np.int16)


def test_opus_is_heard_when_its_packets_say() -> None:
    encoder, decoder = OpusEncoder(24_000), MicrophoneDecoder("opus", 48_000)
    spoken = tone(24_000)
    heard = np.zeros(24_000 + 480)
    ends = None
    for start in range(0, 24_000, 1_000):
        for encoded in encoder.encode(spoken[start : start + 1_000], start):
            assert ends is None or encoded.start == ends, "packets leave no gap"
            ends = encoded.start + encoded.num_samples
            samples = decoder.decode(encoded.data)[::2]  # 48 to 24 kHz
            first = max(0, -encoded.start)
            at = encoded.start + first
            heard[at : at + len(samples) - first] = samples[first:]
    assert ends is not None
    assert 24_000 - 480 <= ends <= 24_000
    middle = slice(4_000, 20_000)
    error = heard[middle] - spoken[middle]
    assert np.sqrt(np.mean(error**2)) < 400, "in phase: a tenth of a millisecond off fails this"


def test_opus_bridges_a_short_gap_and_jumps_over_a_long_one() -> None:
    encoder = OpusEncoder(24_000)
    starts = [p.start for p in encoder.encode(tone(1_000), 0)]
    starts += [p.start for p in encoder.encode(tone(1_000), 3_000)]
    assert starts == list(range(-60, 3_700, 240))
    later = [p.start for p in encoder.encode(tone(1_000), 100_000)]
    assert later[0] == 100_000 - 60


def test_what_was_cut_is_silence() -> None:
    encoder, decoder = OpusEncoder(24_000), MicrophoneDecoder("opus", 48_000)
    for encoded in encoder.encode(tone(1_000), 0):
        decoder.decode(encoded.data)
    encoder.clear()
    after = [decoder.decode(p.data) for p in encoder.encode(np.zeros(2_000, np.int16), 1_000)]
    assert np.abs(np.concatenate(after)[480:]).max() < 200, "silent after one packet"


def test_pcm_is_what_it_is() -> None:
    (encoded,) = PcmEncoder().encode(tone(1_000), 5_000)
    assert (encoded.start, encoded.num_samples) == (5_000, 1_000)
    decoded = MicrophoneDecoder("pcm", 24_000).decode(encoded.data)
    assert np.array_equal(decoded, tone(1_000))


@pytest.mark.parametrize("payload", [b"\xff\x00" * 5, b"\x00" * 5_000, bytes(range(256))])
def test_broken_opus_is_refused_and_the_decoder_goes_on(payload: bytes) -> None:
    decoder = MicrophoneDecoder("opus", 48_000)
    with suppress(BadSound):
        assert len(decoder.decode(payload)) <= 5_760
    (first, *_) = OpusEncoder(24_000).encode(tone(1_000), 0)
    assert len(decoder.decode(first.data)) == 480
