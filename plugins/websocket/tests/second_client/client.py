"""A websocket client written from docs/websocket-protocol.md alone, with nothing of the project.

It holds the server to the document: whatever is missing, mistyped, out of order or not documented
is noted in `Client.violations`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import av
import websockets
from websockets.asyncio.client import ClientConnection

Message = dict[str, Any]
T = TypeVar("T")

VIDEO, AUDIO, MICROPHONE, PHOTO = 1, 2, 16, 17
CODECS = {1: "vp8", 2: "h264", 3: "jpeg", 16: "opus", 17: "pcm"}
HEADER = struct.Struct(">BBBBIqIIQI")  # kind codec flags length sequence pts duration turn sent ...
UPLOAD = struct.Struct(">BBBBI")
OPUS_RATE = 48_000  # what the Opus decoder here gives

_NUMBER = (int, float)
_NONE = type(None)
_LATENCY = dict.fromkeys(("conditioning_s", "generate_s", "decode_s", "hand_out_s"), _NUMBER) | {
    "voice_agent_s": (int, float, _NONE),
    "transport_s": (int, float, _NONE),
}
_SHAPES: dict[str, dict[str, Any]] = {
    "welcome": {
        "version": int,
        "viewer": int,
        "has_floor": bool,
        "floor_taken": bool,
        "may_speak": bool,
        "server_us": int,
        "features": {"say_text": bool, "photo": bool, "audio_input": list},
        "limits": {
            "max_message_bytes": int,
            "max_text_chars": int,
            "max_photo_bytes": int,
            "max_input_s": _NUMBER,
            "max_connection_s": (int, float, _NONE),
            "heartbeat_s": _NUMBER,
        },
    },
    "stream": {
        "stream": int,
        "width": int,
        "height": int,
        "fps": int,
        "video_codec": str,
        "video_codec_string": (str, _NONE),
        "audio_codec": str,
        "sample_rate": int,
        "pts_us": int,
    },
    "stream_ended": {"stream": int},
    "pong": {"client_us": int, "server_us": int},
    "floor": {"has_floor": bool, "floor_taken": bool, "reason": str},
    "turn_started": {"stream": int, "turn_id": int, "pts_us": int},
    "turn_finished": {
        "stream": int,
        "turn_id": int,
        "played_s": _NUMBER,
        "source": str,
        "interrupted": bool,
        "stalls": int,
        "latency": (dict, _NONE),
    },
    "flush": {"flush_id": int, "stream": int},
    "interrupted": {"played_s": _NUMBER, "source": str},
    "paused": {"is_paused": bool},
    "said": {"request_id": (str, _NONE), "turn_id": int},
    "limit": {"kind": str, "in_s": _NUMBER},
    "photo_accepted": {"warnings": list},
    "photo_rejected": {"code": str, "message": str, "faces": list},
    "error": {
        "code": str,
        "message": str,
        "is_fatal": bool,
        "retry_after_s": (int, float, _NONE),
    },
    "stats": {
        "stream": int,
        "fps": _NUMBER,
        "num_frames": int,
        "skew_ms": _NUMBER,
        "stalls": int,
        "stalled_s": _NUMBER,
        "missed_chunks": int,
        "late_frames": int,
        "lateness_p50_ms": _NUMBER,
        "lateness_p99_ms": _NUMBER,
        "first_frame_ms": (int, float, _NONE),
        "latency": (dict, _NONE),
        "encode_ms": (int, float, _NONE),
        "video_kbps": (int, float, _NONE),
        "num_dropped": int,
        "queued_ms": _NUMBER,
        "rtt_ms": (int, float, _NONE),
        "num_viewers": int,
        "cpu_cores": (int, float, _NONE),
        "gpu_hours": (int, float, _NONE),
        "price": (str, _NONE),
        "currency": (str, _NONE),
    },
}


@dataclass
class Picture:
    """One decoded picture."""

    stream: int
    pts_us: int
    turn: int
    is_key: bool
    width: int
    height: int
    luma: bytes = field(repr=False)


@dataclass
class Sound:
    """One decoded piece of sound; flushed samples are zero."""

    stream: int
    pts_us: int
    turn: int
    is_speech: bool
    rate: int
    samples: array[int] = field(repr=False)

    @property
    def end_us(self) -> int:
        return self.pts_us + round(len(self.samples) * 1_000_000 / self.rate)


class Loudspeaker:
    """Plays against the clock: what was heard, and up to where."""

    BUFFER_S = 0.05

    def __init__(self) -> None:
        self.heard: list[Sound] = []
        self._waiting: deque[Sound] = deque()
        self._due_at: float | None = None  # when the first that waits starts to be heard
        self._part = 0  # samples of it that were heard

    def push(self, sound: Sound, now: float) -> None:
        self.advance(now)
        if self._due_at is None and not self._waiting:
            self._due_at = now + self.BUFFER_S
        self._waiting.append(sound)

    def advance(self, now: float) -> None:
        """Let the time until `now` be heard."""
        while self._waiting and self._due_at is not None:
            first = self._waiting[0]
            remaining = (len(first.samples) - self._part) / first.rate
            if now < self._due_at + remaining:
                count = max(0, int((now - self._due_at) * first.rate))
                self._due_at += count / first.rate
                self._part += count
                return
            self._due_at += remaining
            self._part = 0
            self.heard.append(self._waiting.popleft())
            queued_s = sum(len(each.samples) / each.rate for each in self._waiting)
            while queued_s > 2 * self.BUFFER_S and not self._waiting[0].is_speech:
                left_out = self._waiting.popleft()
                queued_s -= len(left_out.samples) / left_out.rate
        if not self._waiting:
            self._due_at = None  # it ran out: silence, then begin anew

    @property
    def position_us(self) -> int | None:
        """The end of the last sample that was heard."""
        if self._waiting and self._part:
            first = self._waiting[0]
            return first.pts_us + round(self._part * 1_000_000 / first.rate)
        return self.heard[-1].end_us if self.heard else None

    def flush(self, now: float) -> None:
        """Silence all that is in the buffer; its time goes on."""
        self.advance(now)
        for sound in self._waiting:
            kept = sound.samples[: self._part] if sound is self._waiting[0] else array("h")
            sound.samples = kept + array("h", bytes(2 * (len(sound.samples) - len(kept))))

    def reset(self) -> None:
        self._waiting.clear()
        self._due_at, self._part = None, 0
        self.heard.clear()


class RefusedError(Exception):
    """The server refused the hello."""

    def __init__(self, error: Message) -> None:
        super().__init__(error["code"])
        self.error = error


class Client:
    """One connection, used as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        video: Iterable[str] = ("vp8",),
        audio: Iterable[str] = ("opus",),
        role: str = "speaker",
        version: int = 1,
        first: str | bytes | None = None,
    ) -> None:
        self._url = url
        hello = {"type": "hello", "version": version, "token": token, "role": role}
        self._hello = first or json.dumps(hello | {"video": list(video), "audio": list(audio)})
        self.violations: list[str] = []
        self.log: list[Message] = []
        self.pictures: list[Picture] = []
        self.sounds: list[Sound] = []
        self.num_packets = 0
        self.lengths_s: set[float] = set()
        self.speaker = Loudspeaker()
        self.welcome: Message = {}
        self.stream: Message = {}
        self.offset_us: int | None = None
        self.flushed: dict[int, int] = {}  # where each flush fell silent
        self._best_rtt_us = 1 << 62
        self._sequences: dict[int, int] = {}
        self._needs_key = False
        self._video: Any = None
        self._audio: Any = None
        self._ws: ClientConnection
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._is_over = False

    async def __aenter__(self) -> Client:
        self._ws = await websockets.connect(self._url, compression=None, max_size=2 << 20)
        await self._ws.send(self._hello)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._report())]
        try:
            answer = await self.expect(lambda m: m["type"] in ("welcome", "error"), since=0)
            if answer["type"] == "error":
                await self.closed()
                raise RefusedError(answer)
        except BaseException:
            await self.close()
            raise
        self.welcome = answer
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._ws.close()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def closed(self, timeout: float = 20) -> tuple[int | None, str]:
        """Wait until the server has closed; give its code and reason."""
        async with asyncio.timeout(timeout):
            await self._ws.wait_closed()
        return self._ws.close_code, self._ws.close_reason or ""

    @property
    def close_code(self) -> int | None:
        return self._ws.close_code

    # -- what is said to the server --

    async def send(self, type_: str, **fields: Any) -> None:
        await self._ws.send(json.dumps({"type": type_, **fields}))

    async def send_raw(self, message: str | bytes) -> None:
        await self._ws.send(message)

    async def upload(self, data: bytes, piece: int = 32_000, **fields: Any) -> Message:
        """Send a photo and wait for the answer."""
        mark = len(self.log)
        await self.send("photo_start", num_bytes=len(data), face=None, **fields)
        for sequence, start in enumerate(range(0, len(data), piece)):
            header = UPLOAD.pack(PHOTO, 0, 0, UPLOAD.size, sequence)
            await self._ws.send(header + data[start : start + piece])
        return await self.expect("photo_accepted", "photo_rejected", "error", since=mark)

    async def microphone(self, packets: Iterable[bytes], packet_s: float, *, codec: str) -> None:
        """Send packets as a microphone would, in real time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for sequence, payload in enumerate(packets):
            header = UPLOAD.pack(
                MICROPHONE, {"opus": 16, "pcm": 17}[codec], 0, UPLOAD.size, sequence
            )
            await self._ws.send(header + payload)
            await asyncio.sleep(began + (sequence + 1) * packet_s - loop.time())

    async def ping(self) -> Message:
        mark = len(self.log)
        sent = _now_us()
        await self.send("ping", client_us=sent)
        return await self.expect(
            lambda m: m["type"] == "pong" and m["client_us"] == sent, since=mark
        )

    async def _report(self) -> None:
        """Say ten times a second what was heard."""
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                await asyncio.sleep(0.1)
                self.speaker.advance(time.monotonic())
                position = self.speaker.position_us
                if position is not None and self.stream:
                    number = self.stream["stream"]
                    await self.send("played", stream=number, pts_us=position)

    # -- what the server says --

    async def expect(
        self, *what: str | Callable[[Message], bool], since: int, timeout: float = 20
    ) -> Message:
        """Wait for the first control message after `since` of one of these types or tests."""

        def fits(message: Message) -> bool:
            return any(message["type"] == w if isinstance(w, str) else w(message) for w in what)

        def find() -> Message | None:
            return next((m for m in self.log[since:] if fits(m)), None)

        return await self.until(find, timeout=timeout, name=str(what))

    async def until(
        self, find: Callable[[], T | None], *, timeout: float = 20, name: str = ""
    ) -> T:
        """Wait until `find` finds something."""
        async with asyncio.timeout(timeout):
            while not (found := find()):
                if self._is_over:
                    raise ConnectionError(f"closed with {self._ws.close_code} while {name} waits")
                self._news.clear()
                await self._news.wait()
            return found

    async def _read(self) -> None:
        try:
            async for message in self._ws:
                if isinstance(message, str):
                    await self._on_control(json.loads(message))
                else:
                    self._on_media(message)
                self._news.set()
        except websockets.ConnectionClosed:
            pass
        finally:
            self._is_over = True
            self._news.set()

    async def _on_control(self, message: Message) -> None:
        self.log.append(message)
        kind = message["type"]
        if kind not in _SHAPES:
            self.violations.append(f"undocumented message {kind}")
            return
        self._check(kind, _SHAPES[kind], {k: v for k, v in message.items() if k != "type"})
        if isinstance(message.get("latency"), dict):
            self._check(f"{kind}.latency", _LATENCY, message["latency"])
        if kind == "stream":
            if self.stream and message["stream"] <= self.stream["stream"]:
                self.violations.append("a stream's number does not grow")
            self._begin(message)
        elif kind == "pong":
            now = _now_us()
            if now - message["client_us"] < self._best_rtt_us:
                self._best_rtt_us = now - message["client_us"]
                self.offset_us = message["server_us"] - (message["client_us"] + now) // 2
        elif kind == "flush" and message["stream"] == self.stream.get("stream"):
            self.speaker.flush(time.monotonic())
            position = self.speaker.position_us
            self.flushed[message["flush_id"]] = position or 0
            answer = {key: message[key] for key in ("flush_id", "stream")}
            await self.send("flushed", **answer, pts_us=position or 0)

    def _check(self, name: str, shape: dict[str, Any], value: Message) -> None:
        for key, wanted in shape.items():
            if key not in value:
                self.violations.append(f"{name}.{key} is missing")
            elif isinstance(wanted, dict):
                self._check(f"{name}.{key}", wanted, value[key])
            elif not isinstance(value[key], wanted) or (
                isinstance(value[key], bool) and wanted is not bool
            ):
                self.violations.append(f"{name}.{key} is {value[key]!r}")
        self.violations += [f"{name}.{key} is not documented" for key in value if key not in shape]

    def _begin(self, stream: Message) -> None:
        """Start anew: a stream has its own timeline and its own decoders."""
        self.stream = stream
        self._sequences.clear()
        self._needs_key = True
        self.speaker.reset()
        name = {"vp8": "libvpx", "h264": "h264", "jpeg": "mjpeg"}[stream["video_codec"]]
        self._video = av.CodecContext.create(name, "r")
        self._video.thread_count = 1
        if stream["audio_codec"] == "opus":
            self._audio = av.CodecContext.create("libopus", "r")
            self._audio.sample_rate = OPUS_RATE
            self._audio.layout = "mono"

    def _on_media(self, message: bytes) -> None:
        kind, codec, flags, length, sequence, pts, duration, turn, sent, number = (
            HEADER.unpack_from(message)
        )
        if kind not in (VIDEO, AUDIO) or codec not in CODECS:
            return
        if number != self.stream.get("stream"):
            if number > self.stream.get("stream", 0):
                self.violations.append("media before its stream")
            return
        self.num_packets += 1
        payload = message[length:]
        is_key, is_speech = bool(flags & 1), bool(flags & 2)
        wanted = self.stream["video_codec" if kind == VIDEO else "audio_codec"]
        if CODECS[codec] != wanted:
            self.violations.append(f"{CODECS[codec]} in a stream of {wanted}")
        last = self._sequences.get(kind)
        has_gap = last is not None and sequence != (last + 1) & 0xFFFFFFFF
        self._sequences[kind] = sequence
        if self.offset_us is not None and sent - self.offset_us > _now_us() + 50_000:
            self.violations.append("sent lies in the future")
        if kind == VIDEO:
            if (has_gap or self._needs_key) and not is_key:
                self.violations.append("no key frame at the start or after a gap")
            self._needs_key = False
            if wanted == "jpeg" and not is_key:
                self.violations.append("a JPEG without the key flag")
            frames = self._video.decode(av.Packet(payload))
            if len(frames) != 1:
                self.violations.append(f"{len(frames)} pictures in a packet of {wanted}")
            for frame in frames:
                if (frame.width, frame.height) != (self.stream["width"], self.stream["height"]):
                    self.violations.append("a picture of another size")
                self.pictures.append(
                    Picture(number, pts, turn, is_key, frame.width, frame.height, _luma(frame))
                )
            return
        if not is_key:
            self.violations.append("sound without the key flag")
        if wanted == "opus":
            samples, rate = array("h"), OPUS_RATE
            for frame in self._audio.decode(av.Packet(payload)):
                rate = frame.sample_rate
                samples.frombytes(bytes(frame.planes[0])[: frame.samples * 2])
        else:
            samples, rate = array("h", payload), self.stream["sample_rate"]
        self.lengths_s.add(round(len(samples) / rate, 5))
        if abs(len(samples) * 1_000_000 / rate - duration) > 1:
            self.violations.append(f"{len(samples)} samples at {rate} Hz last {duration} us")
        sound = Sound(number, pts, turn, is_speech, rate, samples)
        previous = self.sounds[-1] if self.sounds else None
        if previous and previous.stream == number and not has_gap:
            jump = pts - previous.end_us
            if abs(jump) > 2:
                self.violations.append(f"the sound's timeline jumps by {jump} us")
        self.sounds.append(sound)
        self.speaker.push(sound, time.monotonic())


def _luma(frame: Any) -> bytes:
    plane = frame.planes[0]
    rows = bytes(plane)
    return b"".join(
        rows[y * plane.line_size : y * plane.line_size + frame.width] for y in range(frame.height)
    )


def _now_us() -> int:
    return time.monotonic_ns() // 1000
