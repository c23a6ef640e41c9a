"""`talking-avatar serve`, against a client that knows the protocol's document only."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from .client import MICROPHONE, UPLOAD, Client, Message, RefusedError

ROOT = Path(__file__).parents[4]
TOKEN, VIEWER_TOKEN = "speaks-and-sees", "sees-and-no-more"
RATE = 16_000
Join = Callable[..., Client]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = [str(ROOT / "src"), str(ROOT / "plugins/websocket/src"), os.getenv("PYTHONPATH", "")]
    command = [sys.executable, "-m", "talking_avatar", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--size", "128x192", "--token", TOKEN, "--viewer-token", VIEWER_TOKEN],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                    assert (answer.status, answer.read().strip()) == (200, b"ok")
                break
            except urllib.error.URLError:
                assert process.poll() is None
                time.sleep(0.1)
        else:
            pytest.fail("the server does not start")
        yield f"ws://127.0.0.1:{port}/ws", process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def join(server: tuple[str, subprocess.Popen[bytes]]) -> Iterator[Join]:
    """Make clients; at the end hold all that they got to the document."""
    made: list[Client] = []

    def make(**options: Any) -> Client:
        made.append(Client(server[0], **{"token": TOKEN} | options))
        return made[-1]

    yield make
    assert [client.violations for client in made] == [[] for _ in made]


def tone_bursts() -> tuple[array[int], list[float]]:
    """Give a tone that is loud and quiet in turn, and its level in steps of 50 ms."""
    levels = [0.0, 0.9, 0.9, 0.1, 0.5, 0.0, 0.0, 0.7, 0.2, 0.9, 0.0, 0.4, 0.4, 0.0, 0.8, 0.8, 0.1]
    step = RATE // 20
    samples = array("h")
    for index in range(step * len(levels)):
        level = levels[index // step]
        samples.append(round(16_000 * level * math.sin(2 * math.pi * 400 * index / RATE)))
    return samples, levels


def envelope(samples: array[int], rate: int) -> list[float]:
    """Give the level in steps of 10 ms."""
    step = rate // 100
    return [
        math.sqrt(sum(x * x for x in samples[at : at + step]) / step)
        for at in range(0, len(samples) - step + 1, step)
    ]


def correlation(one: list[float], other: list[float]) -> float:
    """Give the best correlation of `one` with a stretch of `other`."""
    best = -1.0
    size = len(one)
    padded = other + [0.0] * max(0, size + 20 - len(other))
    mean = sum(one) / size
    for lag in range(len(padded) - size + 1):
        part = padded[lag : lag + size]
        part_mean = sum(part) / size
        both = sum((a - mean) * (b - part_mean) for a, b in zip(one, part, strict=True))
        scale = sum((a - mean) ** 2 for a in one) * sum((b - part_mean) ** 2 for b in part)
        best = max(best, both / math.sqrt(scale) if scale else 0.0)
    return best


def pcm_packets(samples: array[int], packet_s: float = 0.02) -> list[bytes]:
    step = round(RATE * packet_s)
    return [samples[at : at + step].tobytes() for at in range(0, len(samples), step)]


def opus_packets(samples: array[int]) -> list[bytes]:
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format = RATE, "mono", "s16"
    encoder.time_base = Fraction(1, RATE)
    frame = av.AudioFrame(format="s16", layout="mono", samples=RATE // 50)
    packets = []
    for at in range(0, len(samples) - RATE // 50 + 1, RATE // 50):
        frame = av.AudioFrame(format="s16", layout="mono", samples=RATE // 50)
        frame.sample_rate, frame.pts = RATE, at
        frame.planes[0].update(samples[at : at + RATE // 50].tobytes())
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    return packets


def grey_jpeg(width: int = 640, height: int = 640) -> bytes:
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    frame = av.VideoFrame(width, height, "yuvj420p")
    for plane in frame.planes:
        plane.update(b"\x80" * plane.buffer_size)
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


def heard_turn(client: Client, turn: int) -> array[int]:
    """Give the sound of a turn, as far as it came."""
    samples = array("h")
    for sound in client.sounds:
        if sound.turn == turn:
            samples.extend(sound.samples)
    return samples


@pytest.mark.parametrize(
    ("video", "audio"),
    [
        (("av9000", "vp8"), ("opus",)),
        (("h264",), ("pcm",)),
        (("jpeg", "vp8"), ("none", "opus", "pcm")),
    ],
)
async def test_picture_and_sound(join: Join, video: Any, audio: Any) -> None:
    async with join(video=video, audio=audio) as client:
        welcome = client.welcome
        assert (welcome["version"], welcome["has_floor"], welcome["may_speak"]) == (1, True, True)
        await client.until(lambda: len(client.pictures) >= 12 and len(client.sounds) >= 12)
        stream = client.stream
        known = {"av9000", "none"}
        assert stream["video_codec"] == next(name for name in video if name not in known)
        assert stream["audio_codec"] == next(name for name in audio if name not in known)
        assert (stream["width"], stream["height"], stream["fps"]) == (128, 192, 24)
        assert (stream["video_codec_string"] is None) == (stream["video_codec"] == "jpeg")
        picture = client.pictures[-1]
        assert max(picture.luma) - min(picture.luma) > 100
        frames = [each.pts_us * 24 / 1e6 for each in client.pictures]
        assert all(abs(frame - round(frame)) < 0.001 for frame in frames)
        assert frames == sorted(set(frames))
        assert client.lengths_s == {0.01 if stream["audio_codec"] == "opus" else 0.04167}


async def test_codecs_show_the_same(join: Join) -> None:
    means = {}
    for codec in ("vp8", "h264", "jpeg"):
        async with join(video=[codec]) as client:
            await client.until(lambda c=client: len(c.pictures) >= 3)
            luma = client.pictures[-1].luma
            mean = sum(luma) / len(luma)
            means[codec] = mean if codec == "jpeg" else (mean - 16) * 255 / 219
    assert max(means.values()) - min(means.values()) < 6, means


async def test_clock_stats_and_what_is_unknown(join: Join) -> None:
    async with join() as client:
        first = await client.ping()
        await client.send("no_such_message", field=1)
        await client.send("ping", client_us=77, more="fields")
        await client.send_raw(bytes([99, 1, 0, 8, 0, 0, 0, 0]) + b"what")
        microphone = UPLOAD.pack(MICROPHONE, 17, 0, UPLOAD.size, 0)
        await client.send_raw(microphone + bytes(960))  # without audio_start
        await client.send("feedback", shown_fps=24.0, num_dropped=0)
        seen = sum(picture.is_key for picture in client.pictures)
        await client.send("need_key")
        await client.expect(lambda m: m["type"] == "pong" and m["client_us"] == 77, since=0)
        second = await client.ping()
        assert second["server_us"] > first["server_us"] >= client.welcome["server_us"]
        assert client.offset_us is not None
        stats = await client.expect("stats", since=0)
        assert stats["stream"] == client.stream["stream"]
        await client.until(lambda: sum(picture.is_key for picture in client.pictures) > seen)
        assert not [m for m in client.log if m["type"] == "error"]


@pytest.mark.parametrize("codec", ["pcm", "opus"])
async def test_microphone_is_heard_back(join: Join, codec: str) -> None:
    samples, _ = tone_bursts()
    packets = pcm_packets(samples) if codec == "pcm" else opus_packets(samples)
    async with join() as client:
        mark = len(client.log)
        await client.send("audio_start", codec=codec, sample_rate=RATE)
        await client.microphone(packets, 0.02, codec=codec)
        await client.send("audio_stop")
        finished = await client.expect("turn_finished", since=mark)
        started = await client.expect("turn_started", since=mark)
        assert finished["turn_id"] == started["turn_id"]
        assert not finished["interrupted"]
        assert finished["source"] in ("acknowledged", "estimated")
        assert finished["played_s"] == pytest.approx(len(samples) / RATE, abs=0.2)
        turn = heard_turn(client, started["turn_id"])
        assert correlation(envelope(samples, RATE), envelope(turn, 48_000)) > 0.9
        first = next(each for each in client.sounds if each.turn == started["turn_id"])
        assert first.is_speech
        assert first.pts_us == pytest.approx(started["pts_us"], abs=20_000)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
async def test_text_pause_resume_and_interrupt(join: Join) -> None:
    async with join() as client, join(role="viewer") as watcher:
        mark, watched = len(client.log), len(watcher.log)
        assert client.welcome["features"]["say_text"]
        text = "One two three four five six seven eight nine ten eleven twelve."
        await client.send("say_text", text=text, language="en", request_id="a1")
        said = await client.expect("said", since=mark)
        assert said["request_id"] == "a1"
        started = await client.expect("turn_started", since=mark)
        assert started["turn_id"] == said["turn_id"]
        await client.until(lambda: (client.speaker.position_us or 0) > started["pts_us"] + 300_000)

        await client.send("pause")
        paused = await watcher.expect("paused", since=watched)
        assert paused["is_paused"]
        await client.expect("paused", since=mark)
        count = len(client.sounds)
        await client.until(lambda: len(client.sounds) > count + 40)
        silence = client.sounds[count + 20 : count + 40]
        assert max(abs(x) for each in silence for x in each.samples) < 100
        mark = len(client.log)
        await client.send("resume")
        assert not (await client.expect("paused", since=mark))["is_paused"]
        count = len(client.sounds)

        def is_loud() -> bool:
            return any(max(map(abs, each.samples)) > 1000 for each in client.sounds[count:])

        await client.until(is_loud)

        mark, watched = len(client.log), len(watcher.log)
        await client.send("interrupt")
        flush = await client.expect("flush", since=mark)
        assert flush["stream"] == client.stream["stream"]
        assert (await watcher.expect("flush", since=watched))["flush_id"] == flush["flush_id"]
        interrupted = await client.expect("interrupted", since=mark)
        # A machine may be so busy that the answer comes after the server's patience.
        assert interrupted["source"] in ("acknowledged", "estimated")
        assert interrupted["played_s"] > 0.25
        heard_us = client.flushed[flush["flush_id"]]
        heard = [each for each in client.sounds if each.turn == said["turn_id"] and each.is_speech]
        heard_s = sum(len(each.samples) for each in heard if each.end_us <= heard_us) / 48_000
        assert interrupted["played_s"] == pytest.approx(
            heard_s, abs=0.08 if interrupted["source"] == "acknowledged" else 0.5
        )
        for each, since in ((client, mark), (watcher, watched)):
            finished = await each.expect("turn_finished", since=since)
            assert (finished["turn_id"], finished["interrupted"]) == (said["turn_id"], True)
            assert finished["played_s"] == pytest.approx(interrupted["played_s"], abs=0.01)
        # What comes after is on the timeline, and silent.
        count = len(client.sounds)
        await client.until(lambda: len(client.sounds) > count + 30)
        assert not client.sounds[-1].is_speech
        assert not [m for m in watcher.log if m["type"] == "interrupted"]

        mark = len(client.log)
        await client.send("interrupt")
        nothing = await client.expect("interrupted", since=mark)
        assert (nothing["played_s"], nothing["source"]) == (0, "handed_out")


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
async def test_texts_that_wait_are_interrupted(join: Join) -> None:
    async with join() as client:
        for index in range(3):
            await client.send("say_text", text="One, two, three, four.", request_id=str(index))
        await client.expect("turn_started", since=0)
        await client.expect(lambda m: m["type"] == "said" and m["request_id"] == "1", since=0)
        await client.send("interrupt")
        await client.expect("interrupted", since=0)

        def are_over() -> bool:
            said = {m["turn_id"] for m in client.log if m["type"] == "said"}
            return said == {m["turn_id"] for m in client.log if m["type"] == "turn_finished"}

        await client.until(are_over)
        started = [m["turn_id"] for m in client.log if m["type"] == "turn_started"]
        assert started == [next(m["turn_id"] for m in client.log if m["type"] == "said")]


async def refusal(join: Join, **options: Any) -> tuple[str, bool, int | None]:
    client = join(**options)
    with pytest.raises(RefusedError) as caught:
        await client.__aenter__()
    return caught.value.error["code"], caught.value.error["is_fatal"], client.close_code


async def test_refusals(join: Join) -> None:
    assert await refusal(join, token="not-the-token") == ("unauthorized", True, 4401)
    assert await refusal(join, token=None) == ("unauthorized", True, 4401)
    assert await refusal(join, version=0) == ("bad_hello", True, 4400)
    assert await refusal(join, video=["av9000"]) == ("no_common_codec", True, 4415)
    assert await refusal(join, audio=["none"]) == ("no_common_codec", True, 4415)
    for first in ("{", "[]", json.dumps({"type": "ping", "client_us": 1}), b"\x10\x10\x00\x08"):
        assert await refusal(join, first=first) == ("bad_hello", True, 4400)


async def test_malformed_messages(join: Join) -> None:
    async with join() as client:
        wrong = [
            "{",
            "[]",
            '{"no": "type"}',
            json.dumps({"type": "ping"}),
            json.dumps({"type": "say_text", "text": 5}),
            json.dumps({"type": "played", "stream": 1, "pts_us": "soon"}),
            json.dumps({"type": "hello", "version": 1, "token": TOKEN}),
            UPLOAD.pack(MICROPHONE, 17, 0, 8, 0)[:6],
        ]
        for message in wrong:
            mark = len(client.log)
            await client.send_raw(message)
            error = await client.expect("error", since=mark)
            assert (error["code"], error["is_fatal"]) == ("bad_message", False), message
        await client.ping()
        for _ in range(20):
            await client.send_raw("{")
        fatal = await client.expect(lambda m: m["type"] == "error" and m["is_fatal"], since=0)
        assert fatal["code"] == "bad_message"
        assert (await client.closed())[0] == 4422


async def test_limits(join: Join) -> None:
    async with join() as client:
        limits = client.welcome["limits"]
        mark = len(client.log)
        await client.send("say_text", text="x" * (limits["max_text_chars"] + 1), request_id="b")
        assert (await client.expect("error", since=mark))["code"] == "text_too_long"
        mark = len(client.log)
        await client.send("audio_start", codec="pcm", sample_rate=1000)
        assert (await client.expect("error", since=mark))["code"] == "bad_message"
        mark = len(client.log)
        await client.send("audio_start", codec="opus", sample_rate=48_000)
        await client.microphone([b"\xff" * 40], 0.02, codec="opus")
        assert (await client.expect("error", since=mark))["code"] == "audio_format"
        mark = len(client.log)
        await client.microphone([bytes(960)], 0.01, codec="pcm")
        assert (await client.expect("error", since=mark))["code"] == "bad_message"
        await client.send("audio_stop")
        mark = len(client.log)
        for _ in range(8):
            await client.send("request_floor", take_over=False)
        assert (await client.expect("error", since=mark))["code"] == "rate_limited"
        await client.send_raw(json.dumps({"type": "x", "y": "z" * limits["max_message_bytes"]}))
        assert (await client.closed())[0] == 1009


async def test_the_floor(join: Join) -> None:
    def reason(wanted: str) -> Callable[[Message], bool]:
        return lambda m: m["type"] == "floor" and m["reason"] == wanted

    async with join() as one, join() as two, join(token=VIEWER_TOKEN) as guest:
        assert one.welcome["has_floor"]
        assert (two.welcome["has_floor"], two.welcome["floor_taken"]) == (False, True)
        assert (guest.welcome["may_speak"], guest.welcome["has_floor"]) == (False, False)
        assert len({each.welcome["viewer"] for each in (one, two, guest)}) == 3
        for each in (two, guest):
            await each.send("interrupt")
            assert (await each.expect("error", since=0))["code"] == "not_speaker"
        await guest.send("request_floor", take_over=True)
        await guest.expect(reason("not_allowed"), since=0)
        await two.send("request_floor", take_over=False)
        refused = await two.expect(reason("refused"), since=0)
        assert (refused["has_floor"], refused["floor_taken"]) == (False, True)
        await two.send("request_floor", take_over=True)
        assert (await two.expect(reason("granted"), since=0))["has_floor"]
        assert not (await one.expect(reason("taken_over"), since=0))["has_floor"]
        assert (await guest.expect(reason("changed"), since=0))["floor_taken"]
        await two.send("release_floor")
        assert not (await two.expect(reason("released"), since=0))["floor_taken"]
        await one.send("request_floor", take_over=False)
        await one.expect(reason("granted"), since=0)
        mark = len(two.log)
        await one.close()
        assert one.close_code == 1000
        left = await two.expect("floor", since=mark)
        while left["floor_taken"]:
            mark = two.log.index(left, mark) + 1
            left = await two.expect("floor", since=mark)
        assert left["reason"] == "changed"


async def test_photo(join: Join) -> None:
    photo = (ROOT / "src/talking_avatar/assets/portrait.jpg").read_bytes()
    async with join() as client:
        answer = await client.upload(grey_jpeg())
        assert (answer["type"], answer["code"]) == ("photo_rejected", "no_face")
        answer = await client.upload(b"no image at all")
        assert (answer["type"], answer["code"]) == ("photo_rejected", "unreadable_image")
        mark = len(client.log)
        too_large = client.welcome["limits"]["max_photo_bytes"] + 1
        await client.send("photo_start", num_bytes=too_large, face=None)
        assert (await client.expect("photo_rejected", since=mark))["code"] == "too_large"
        old = client.stream["stream"]
        answer = await client.upload(photo)
        assert answer["type"] == "photo_accepted"
        await client.until(lambda: client.stream["stream"] > old)
        shown = len(client.pictures)
        await client.until(lambda: len(client.pictures) > shown + 5)
        assert client.pictures[-1].stream == client.stream["stream"]


async def test_the_server_goes_away(
    join: Join, server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """Comes last: it ends the server."""
    async with join() as client:
        await client.until(lambda: client.pictures)
        server[1].send_signal(signal.SIGINT)
        assert (await client.closed())[0] == 1001
        error = await client.expect("error", since=0)
        assert (error["code"], error["is_fatal"]) == ("going_away", True)
    assert await asyncio.to_thread(server[1].wait, 20) in (0, 130)
