"""Bytes that cannot be the sound that was stated raise one warning event a turn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from talking_avatar.audio import AudioFormat, SpeechStream, to_int16

RATE = 24_000


def events(data: Any, format: AudioFormat, *, chunk_ms: int = 20) -> list[dict[str, Any]]:
    step = format.sample_rate * chunk_ms // 1000 * format.frame_bytes
    with capture_logs() as logs:
        stream = SpeechStream(format)
        for start in range(0, len(data), step):
            stream.push(data[start : start + step])
        stream.flush()
    return [dict(log) for log in logs]


def voice(seconds: float = 2.0, rate: int = RATE) -> np.ndarray:
    """Give a buzz of 120 Hz with falling harmonics, 2 syllables a second, in a room's noise."""
    t = np.arange(int(seconds * rate)) / rate
    buzz = sum(np.sin(2 * np.pi * 120 * k * t) / k**1.5 for k in range(1, 25))
    room = np.random.default_rng(1).normal(0, 0.002, len(t))
    return (0.3 * buzz * np.maximum(0, np.sin(2 * np.pi * 2 * t)) + room).astype(np.float32)


def mulaw_encoded(samples: np.ndarray) -> bytes:
    """Encode by the continuous mu-law of which G.711 is the piecewise form."""
    magnitude = np.log1p(255 * np.abs(samples)) / np.log(256)
    code = np.minimum(127, np.rint(magnitude * 127)).astype(np.uint8) | (samples < 0) * np.uint8(
        128
    )
    return (~code).astype(np.uint8).tobytes()


@pytest.mark.parametrize("encoding", ["int16", "float32"])
def test_speech_is_plausible(encoding: Any) -> None:
    samples = voice()
    data = to_int16(samples).tobytes() if encoding == "int16" else samples.tobytes()
    assert events(data, AudioFormat(RATE, 1, encoding)) == []


def test_silence_quiet_noise_and_a_loud_tone_are_plausible() -> None:
    t = np.arange(RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.05, RATE).astype(np.float32)
    for samples in (np.zeros(RATE, np.float32), noise, np.sin(2 * np.pi * 1000 * t)):
        assert events(to_int16(samples.astype(np.float32)).tobytes(), AudioFormat(RATE)) == []


def test_mulaw_passed_as_int16_is_noticed() -> None:
    found = events(mulaw_encoded(voice(rate=8_000)), AudioFormat(8_000))
    assert [(e["event"], e["reason"], e["log_level"]) for e in found] == [
        ("audio_implausible", "noise", "warning")
    ]


def test_mulaw_stated_as_mulaw_is_plausible() -> None:
    assert events(mulaw_encoded(voice(rate=8_000)), AudioFormat(8_000, 1, "mulaw")) == []


def test_noise_after_silence_is_noticed_in_one_large_chunk() -> None:
    pcm = to_int16(voice())
    data = bytes(RATE) + pcm.byteswap().tobytes()
    with capture_logs() as logs:
        SpeechStream(AudioFormat(RATE)).push(data)
    assert [log["reason"] for log in logs] == ["noise"]


def test_bytes_off_by_one_are_noticed_once() -> None:
    data = to_int16(voice(4)).tobytes()[1:]
    assert [e["reason"] for e in events(data, AudioFormat(RATE))] == ["noise"]


def test_an_error_body_is_noticed_though_it_is_short_and_odd() -> None:
    body = json.dumps({"error": {"message": "quota exceeded", "code": 42}}).encode()
    body += b" " * (1 - len(body) % 2)
    assert len(body) % 2 == 1
    found = events(body, AudioFormat(RATE))
    assert [e["reason"] for e in found] == ["text"]
    assert "printable ASCII" in found[0]["hint"]


@pytest.mark.parametrize(
    ("start", "name"),
    [(b"RIFF\x24\x00\x00\x00WAVE", "WAV"), (b"ID3\x04", "MP3"), (b"\0\0\0\x20ftypM4A ", "MP4")],
)
def test_a_file_passed_as_pcm_is_named(start: bytes, name: str) -> None:
    found = events(start + to_int16(voice()).tobytes(), AudioFormat(RATE))
    assert [e["reason"] for e in found] == ["container"]
    assert f"like a {name} file" in found[0]["hint"]


def test_float_samples_at_integer_scale_are_noticed() -> None:
    found = events((voice() * 2**15).tobytes(), AudioFormat(RATE, 1, "float32"))
    assert [e["reason"] for e in found] == ["scale"]


def test_a_turn_that_ends_within_a_frame_is_noticed() -> None:
    found = events(to_int16(voice()).tobytes() + b"\x01", AudioFormat(RATE))
    assert [e["reason"] for e in found] == ["partial_frame"]
    assert "1 bytes into frame 48000" in found[0]["hint"]


def test_the_format_is_in_the_event_and_no_payload() -> None:
    (event,) = events(b"x" * 4000, AudioFormat(48_000, 2, "int32"))
    assert {k: event[k] for k in ("sample_rate", "channels", "encoding")} == {
        "sample_rate": 48_000,
        "channels": 2,
        "encoding": "int32",
    }
    assert set(event) == {
        "event", "log_level", "reason", "hint", "sample_rate", "channels", "encoding",
    }  # fmt: skip


def test_only_the_first_five_seconds_are_judged() -> None:
    late = np.concatenate([np.zeros(6 * RATE, np.int16), to_int16(voice()).byteswap()])
    assert events(late.tobytes(), AudioFormat(RATE)) == []
