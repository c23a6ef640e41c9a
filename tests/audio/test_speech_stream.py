"""Any stated PCM becomes 24 kHz mono float32, exact to the sample."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talking_avatar.audio import AudioFormat, SpeechStream, to_int16
from talking_avatar.errors import AudioFormatError

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]
PCM_ENCODINGS: list[Any] = ["int16", "int32", "float32"]


def encoded(samples: np.ndarray, encoding: str) -> np.ndarray:
    match encoding:
        case "int16":
            return to_int16(samples.astype(np.float32))
        case "int32":
            return np.rint(samples * (2**31 - 1)).astype(np.int32)
        case _:
            return samples.astype(np.float32)


def convert(data: Any, format: AudioFormat, chunk: int) -> np.ndarray:
    stream = SpeechStream(format)
    parts = [stream.push(data[i : i + chunk]) for i in range(0, len(data), chunk)]
    result = np.concatenate([*parts, stream.flush()])
    assert result.dtype == np.float32
    assert len(result) == stream.num_samples_out
    return result


def sine(rate: int, seconds: float, hz: float = 440.0, level: float = 0.5) -> np.ndarray:
    return level * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)


def distortion_db(samples: np.ndarray, hz: float = 440.0) -> float:
    """Give what is not the sine, relative to it; the first and last 10 ms are left out."""
    t = np.arange(len(samples)) / 24_000
    basis = np.stack([np.sin(2 * np.pi * hz * t), np.cos(2 * np.pi * hz * t)], axis=1)
    inner = slice(240, -240)
    weights = np.linalg.lstsq(basis[inner], samples[inner], rcond=None)[0]
    rest = samples[inner] - basis[inner] @ weights
    return float(10 * np.log10(np.mean(rest**2) / (np.sum(weights**2) / 2)))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("encoding", PCM_ENCODINGS)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_sine_in_20_ms_chunks_stays_a_sine(
    rate: int, encoding: Any, channels: int, as_bytes: bool
) -> None:
    tone = np.repeat(encoded(sine(rate, 1.0), encoding)[:, None], channels, axis=1)
    format = AudioFormat(rate, channels, encoding)
    if as_bytes:
        result = convert(tone.tobytes(), format, rate // 50 * format.frame_bytes)
    else:
        result = convert(tone, format, rate // 50)
    assert len(result) == 24_000
    assert distortion_db(result) < -80
    expected = sine(24_000, 1.0)
    assert np.abs(result - expected)[240:-240].max() < 2e-4  # no shift: one sample would be 0.06


@given(
    rate=st.sampled_from(RATES),
    chunks=st.lists(st.integers(0, 3_000), max_size=12),
    channels=st.integers(1, 3),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_sample_is_lost_nor_made(rate: int, chunks: list[int], channels: int) -> None:
    stream = SpeechStream(AudioFormat(rate, channels, "float32"))
    given_out = sum(len(stream.push(np.zeros((n, channels), np.float32))) for n in chunks)
    given_out += len(stream.flush())
    assert stream.num_frames_in == sum(chunks)
    assert given_out == stream.num_samples_out == round(sum(chunks) * 24_000 / rate)


@given(cuts=st.lists(st.integers(0, 6_400), max_size=40), rate=st.sampled_from([16_000, 24_000]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_chunk_borders_change_no_sample(cuts: list[int], rate: int) -> None:
    noise = np.random.default_rng(3).integers(-9_000, 9_000, 3_200).astype("<i2").tobytes()
    format = AudioFormat(rate)
    whole = convert(noise, format, len(noise))
    borders = [0, *sorted(cuts), len(noise)]
    stream = SpeechStream(format)
    parts = [stream.push(noise[a:b]) for a, b in pairwise(borders)]
    np.testing.assert_allclose(np.concatenate([*parts, stream.flush()]), whole, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_odd_bytes_are_carried_over(chunk: int) -> None:
    pcm = encoded(sine(24_000, 0.05), "int16")
    result = convert(pcm.tobytes(), AudioFormat(24_000), chunk)
    np.testing.assert_array_equal(to_int16(result), pcm)


def test_a_frame_of_several_channels_is_carried_over() -> None:
    pcm = np.arange(-600, 600, dtype="<i4").reshape(-1, 2) * 2**16
    result = convert(pcm.tobytes(), AudioFormat(24_000, 2, "int32"), 11)
    np.testing.assert_allclose(result, pcm.mean(axis=1) / 2**31, atol=1e-9)


def test_empty_chunks_are_harmless() -> None:
    stream = SpeechStream(AudioFormat(16_000))
    empties: list[Any] = [b"", bytearray(), memoryview(b""), np.zeros(0, np.int16)]
    assert [len(stream.push(empty)) for empty in empties] == [0, 0, 0, 0]
    assert len(stream.flush()) == 0
    assert stream.num_samples_out == 0


def test_bytes_bytearray_memoryview_and_array_are_the_same_sound() -> None:
    pcm = encoded(sine(24_000, 0.1), "int16")
    raw = pcm.tobytes()
    strided = memoryview(b"".join(bytes([b, 0]) for b in raw))[::2]
    for data in (raw, bytearray(raw), memoryview(raw), memoryview(pcm), strided, pcm):
        result = SpeechStream(AudioFormat(24_000)).push(data)
        np.testing.assert_array_equal(to_int16(result), pcm)


def test_the_last_milliseconds_of_a_turn_come_out() -> None:
    """A click 2 ms before the end of the input is there in the output."""
    for rate in RATES:
        data = np.zeros(rate // 2, np.float32)
        click = len(data) - rate // 500
        data[click] = 0.8
        result = convert(data, AudioFormat(rate, 1, "float32"), rate // 50)
        assert abs(int(np.abs(result).argmax()) - click * 24_000 / rate) <= 1, rate


def test_a_pause_in_mid_turn_drops_nothing() -> None:
    """200 ms without a chunk are no silence: what comes next continues the same sound."""
    pcm = encoded(sine(16_000, 1.0), "int16").tobytes()
    stream = SpeechStream(AudioFormat(16_000))
    parts = [stream.push(pcm[:16_000]), stream.push(b""), stream.push(pcm[16_000:])]
    result = np.concatenate([*parts, stream.flush()])
    assert len(result) == 24_000
    assert distortion_db(result) < -80


def test_every_turn_may_have_its_own_rate() -> None:
    for rate in (24_000, 16_000, 48_000):
        assert len(convert(np.zeros(rate, np.int16), AudioFormat(rate), 160)) == 24_000


def test_float_is_clipped_and_full_scale_never_wraps() -> None:
    data = np.array([1.0, 1.5, -1.0, -7.0, 0.25], np.float32)
    result = SpeechStream(AudioFormat(24_000, 1, "float32")).push(data)
    np.testing.assert_array_equal(result, np.array([1, 1, -1, -1, 0.25], np.float32))
    np.testing.assert_array_equal(to_int16(result), [32_767, 32_767, -32_768, -32_768, 8_192])


def test_overshoot_of_the_resampler_is_clipped() -> None:
    square = np.sign(sine(16_000, 0.5, 200.0)).astype(np.float32)
    result = convert(square, AudioFormat(16_000, 1, "float32"), 320)
    assert np.abs(result).max() == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_number_is_named_and_nothing_is_taken(bad: float) -> None:
    stream = SpeechStream(AudioFormat(24_000, 2, "float32"))
    stream.push(np.zeros((100, 2), np.float32))
    broken = np.zeros((50, 2), np.float32)
    broken[7, 1] = bad
    with pytest.raises(AudioFormatError, match=rf"sample 107 \(0\.004 s\), channel 1, is {bad}"):
        stream.push(broken)
    assert stream.num_frames_in == 100
    assert len(stream.push(np.zeros((1, 2), np.float32))) == 1


def test_a_float64_too_large_for_float32_is_refused_without_a_warning() -> None:
    with pytest.raises(AudioFormatError, match=r"sample 1 .* is inf"):
        SpeechStream(AudioFormat(24_000, 1, "float32")).push(np.array([0.5, 1e300]))


def test_integers_keep_their_value() -> None:
    for dtype, encoding in ((np.int16, "int16"), (np.int32, "int32")):
        info = np.iinfo(dtype)
        data = np.array([info.min, -1, 0, 1, info.max], dtype)
        format = AudioFormat(24_000, 1, encoding)  # type: ignore[arg-type]
        result = SpeechStream(format).push(data)
        scaled = (data / 2.0 ** (info.bits - 1)).astype(np.float32)
        np.testing.assert_array_equal(result, scaled)


def test_int16_in_is_the_same_int16_out() -> None:
    every = np.arange(-(2**15), 2**15).astype(np.int16)
    result = SpeechStream(AudioFormat(24_000)).push(every)
    np.testing.assert_array_equal(to_int16(result), every)


def test_rounding_is_to_the_nearest() -> None:
    steps = np.array([0.49, 0.51, -0.49, -0.51, 1.5, 2.5], np.float32) / 2**15
    np.testing.assert_array_equal(to_int16(steps), [0, 1, 0, -1, 2, 2])


def test_mulaw_and_alaw_decode_as_g711_says() -> None:
    """Values of ITU-T G.711, tables 1a to 2b, on the 16-bit scale."""
    mulaw = {0x00: -32_124, 0x80: 32_124, 0xFF: 0, 0x7F: 0, 0xFE: 8, 0x0F: -16_764, 0xC0: 1_884}
    alaw = {0x55: -8, 0xD5: 8, 0x2A: -32_256, 0xAA: 32_256, 0x54: -24, 0x45: -264, 0xF5: 528}
    for encoding, table in (("mulaw", mulaw), ("alaw", alaw)):
        format = AudioFormat(24_000, 1, encoding)  # type: ignore[arg-type]
        result = SpeechStream(format).push(bytes(table))
        np.testing.assert_array_equal(to_int16(result), list(table.values()))


def test_mulaw_adds_no_more_distortion_than_its_own_8_bits() -> None:
    """8 kHz mu-law of a sine has an SNR near 38 dB by itself; resampling keeps it."""
    tone = sine(8_000, 1.0)
    codes = np.arange(256, dtype=np.uint8)
    values = SpeechStream(AudioFormat(24_000, 1, "mulaw")).push(codes)
    nearest = np.abs(tone[:, None] - values[None]).argmin(axis=1).astype(np.uint8)
    result = convert(nearest.tobytes(), AudioFormat(8_000, 1, "mulaw"), 160)
    quantized = values[nearest] - tone
    own_db = 10 * np.log10(np.mean(quantized**2) / np.mean(tone**2))
    assert len(result) == 24_000
    assert distortion_db(result) < own_db + 0.5


def test_stereo_is_averaged_whether_interleaved_or_in_two_axes() -> None:
    pairs = np.array([[0.5, -0.5], [1.0, 0.0], [0.2, 0.4]], np.float32)
    format = AudioFormat(24_000, 2, "float32")
    for data in (pairs, pairs.reshape(-1), pairs.tobytes()):
        np.testing.assert_allclose(SpeechStream(format).push(data), [0, 0.5, 0.3], atol=1e-7)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4, np.int32), "array of int32 came where int16"),
        (np.zeros(4, np.uint16), "array of uint16 came where int16"),
        (np.zeros((4, 3), np.int16), r"shape \(4, 3\) came where 2 channels"),
        (np.zeros((2, 4, 2), np.int16), r"shape \(2, 4, 2\)"),
        (np.zeros(5, np.int16), "5 interleaved samples"),
    ],
)
def test_an_array_that_does_not_fit_the_format_is_refused(array: Any, message: str) -> None:
    with pytest.raises(AudioFormatError, match=message):
        SpeechStream(AudioFormat(24_000, 2)).push(array)


def test_an_array_cannot_complete_a_frame_of_bytes() -> None:
    stream = SpeechStream(AudioFormat(24_000))
    stream.push(b"\0\0\0")
    with pytest.raises(AudioFormatError, match="1 bytes into a frame"):
        stream.push(np.zeros(4, np.int16))


def test_a_flushed_stream_takes_no_more_and_gives_no_more() -> None:
    stream = SpeechStream(AudioFormat(16_000))
    stream.push(bytes(640))
    assert len(stream.flush()) > 0
    assert len(stream.flush()) == 0
    with pytest.raises(ValueError, match="flushed"):
        stream.push(b"")


@pytest.mark.parametrize(
    ("array", "format"),
    [
        (np.zeros(8, np.int16), AudioFormat(16_000, 1, "int16")),
        (np.zeros((8, 2), np.int32), AudioFormat(16_000, 2, "int32")),
        (np.zeros((8, 1), np.float64), AudioFormat(16_000, 1, "float32")),
    ],
)
def test_an_array_states_its_own_format(array: Any, format: AudioFormat) -> None:
    assert AudioFormat.of_array(array, 16_000) == format
    assert len(SpeechStream(format).push(array)) >= 0


@pytest.mark.parametrize("array", [np.zeros(8, np.uint8), np.zeros(8, bool), np.zeros((1, 2, 3))])
def test_an_array_that_is_no_sound_states_no_format(array: Any) -> None:
    with pytest.raises(AudioFormatError, match="is no sound"):
        AudioFormat.of_array(array, 16_000)


@pytest.mark.parametrize(
    "arguments", [{"sample_rate": 0}, {"channels": 0}, {"encoding": "int24"}], ids=str
)
def test_a_format_that_does_not_exist_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        AudioFormat(**arguments)


@pytest.mark.parametrize("shape", [(2, 24_000), (1, 480), (100, 0)])
def test_channels_first_is_named(shape: tuple[int, int]) -> None:
    with pytest.raises(AudioFormatError, match=r"array\.T"):
        AudioFormat.of_array(np.zeros(shape, np.float32), 24_000)


@pytest.mark.parametrize("rate", [16_000.0, "16000", None])
def test_a_rate_is_a_whole_number(rate: Any) -> None:
    with pytest.raises(ValueError, match="whole number"):
        AudioFormat(rate)


def test_a_rate_may_be_numpys() -> None:
    assert AudioFormat(np.int64(16_000)).sample_rate == 16_000  # type: ignore[arg-type]


def test_frame_bytes() -> None:
    assert AudioFormat(8_000, 2, "alaw").frame_bytes == 2
    assert AudioFormat(8_000, 2, "int32").frame_bytes == 8
