"""Speech out of media files, and clear refusals of what holds none."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from talking_avatar.audio import to_int16
from talking_avatar.errors import AudioFormatError
from talking_avatar.media import decode_file


def tone(rate: int, seconds: float = 1.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)).astype("f4")


def wav_bytes(pcm: np.ndarray, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if pcm.ndim == 1 else pcm.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())
    return buffer.getvalue()


def encode(path: Path, codec: str, rate: int, samples: np.ndarray) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        stream.format = "s16" if codec == "flac" else "fltp"
        if codec == "flac":
            samples = to_int16(samples)
        frame = av.AudioFrame.from_ndarray(samples[None], format=stream.format.name, layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    n = min(len(a), len(b))
    return float(np.corrcoef(a[:n], b[:n])[0, 1])


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_wav_of_any_rate_has_its_exact_length(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(to_int16(tone(rate)), rate))
    samples = decode_file(path)
    assert samples.dtype == np.float32
    assert samples.shape == (24_000,)
    assert similarity(samples, tone(24_000)) > 0.9999


def test_wav_at_24_khz_is_bit_exact_by_path_str_and_open_file(tmp_path: Path) -> None:
    pcm = np.random.default_rng(0).integers(-30_000, 30_000, 24_000).astype(np.int16)
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(pcm, 24_000))
    for file in (path, str(path), io.BytesIO(path.read_bytes())):
        np.testing.assert_array_equal(to_int16(decode_file(file)), pcm)


def test_stereo_is_averaged(tmp_path: Path) -> None:
    pcm = np.stack([np.full(4_800, 8_000), np.full(4_800, -2_000)], axis=1).astype(np.int16)
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(pcm, 24_000))
    np.testing.assert_allclose(decode_file(path), 3_000 / 2**15, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp3", "libmp3lame"), ("a.m4a", "aac"), ("a.ogg", "libopus"), ("a.flac", "flac")],
)
def test_compressed_files_start_where_their_sound_does(
    tmp_path: Path, name: str, codec: str
) -> None:
    sound = tone(48_000)
    sound[:24_000] = 0
    encode(tmp_path / name, codec, 48_000, sound)
    samples = decode_file(tmp_path / name)
    assert abs(len(samples) - 24_000) <= 1_200, "at most one codec frame of padding at the end"
    onset = int(np.argmax(np.abs(samples) > 0.1))
    assert abs(onset - 12_000) < 240, "within 10 ms"


def test_a_file_that_is_not_there_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file at .*none\.wav"):
        decode_file(tmp_path / "none.wav")


@pytest.mark.parametrize("content", [b"", b"this is text, not sound\n" * 40, bytes(5_000)])
def test_what_is_no_media_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(content)
    with pytest.raises(AudioFormatError, match=r"speech\.wav cannot be read as sound"):
        decode_file(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AudioFormatError, match="cannot be read as sound"):
        decode_file(tmp_path)


def test_a_picture_holds_no_sound(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64)).save(tmp_path / "face.png")
    with pytest.raises(AudioFormatError, match=r"face\.png holds no sound: its streams are video"):
        decode_file(tmp_path / "face.png")


def test_a_wav_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.zeros(0, np.int16), 24_000))
    with pytest.raises(AudioFormatError, match="no samples"):
        decode_file(tmp_path / "a.wav")


def test_a_wav_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    whole = wav_bytes(to_int16(tone(24_000)), 24_000)
    (tmp_path / "a.wav").write_bytes(whole[: 44 + 24_000])
    assert len(decode_file(tmp_path / "a.wav")) == 12_000


def test_what_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.zeros(48_000, np.int16), 24_000))
    with pytest.raises(AudioFormatError, match="longer than 1 s"):
        decode_file(tmp_path / "a.wav", max_s=1.0)
