"""Control messages from server to client."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from talking_avatar_websocket._messages.base import Message
from talking_avatar_websocket._packets import AudioCodec, VideoCodec

Source: TypeAlias = Literal["acknowledged", "estimated", "handed_out"]
FloorReason: TypeAlias = Literal[
    "granted", "refused", "taken_over", "released", "changed", "not_allowed"
]


class ServerMessage(Message):
    """From server to client."""


class Features(Message):
    """What this server does.

    Attributes:
        say_text: It has a voice.
        photo: It takes photos.
        audio_input: Codecs of microphone sound that it takes; empty: it takes none.
    """

    say_text: bool = False
    photo: bool = False
    audio_input: list[str] = Field(default_factory=list)


class WelcomeLimits(Message):
    """What this server holds its clients to; the client need not guess."""

    max_message_bytes: int
    max_text_chars: int
    max_photo_bytes: int
    max_input_s: float
    max_connection_s: float | None
    heartbeat_s: float


class Welcome(ServerMessage):
    """The answer to a good `Hello`.

    Attributes:
        version: That is spoken from now on.
        viewer: Number of this client on this server.
        has_floor: Whether it is the speaker.
        floor_taken: Whether somebody is.
        may_speak: Whether its token lets it become the speaker.
        server_us: The server's clock.
    """

    type: Literal["welcome"] = "welcome"
    version: int
    viewer: int
    has_floor: bool
    floor_taken: bool
    may_speak: bool
    server_us: int
    features: Features
    limits: WelcomeLimits


class StreamInfo(ServerMessage):
    """A stream begins, or the codec of this client changes; media of this number follows.

    Attributes:
        stream: Its number; grows. Media and positions of another stream are void.
        width, height, fps: Of the picture.
        video_codec: Of the packets.
        video_codec_string: As WebCodecs takes it; None for JPEG.
        audio_codec: Of the packets.
        sample_rate: Of the sound; mono.
        pts_us: Where its timeline is now.
    """

    type: Literal["stream"] = "stream"
    stream: int
    width: int
    height: int
    fps: int
    video_codec: VideoCodec
    video_codec_string: str | None
    audio_codec: AudioCodec
    sample_rate: int
    pts_us: int


class StreamEnded(ServerMessage):
    """No more media of this stream comes. Another may begin."""

    type: Literal["stream_ended"] = "stream_ended"
    stream: int


class TurnStarted(ServerMessage):
    """The first speech of a turn is on its way."""

    type: Literal["turn_started"] = "turn_started"
    stream: int
    turn_id: int
    pts_us: int


class Latency(Message):
    """From speech at hand to picture shown, in parts; seconds."""

    voice_agent_s: float | None
    conditioning_s: float
    generate_s: float
    decode_s: float
    hand_out_s: float
    transport_s: float | None


class TurnFinished(ServerMessage):
    """What became of a turn.

    Attributes:
        played_s: Seconds of its speech that were heard.
        source: How that is known.
        interrupted: Whether it was cut.
        stalls: Times that picture and sound had to wait in it.
        latency: None if nothing of it was shown.
    """

    type: Literal["turn_finished"] = "turn_finished"
    stream: int
    turn_id: int
    played_s: float
    source: Source
    interrupted: bool
    stalls: int = 0
    latency: Latency | None = None


class Flush(ServerMessage):
    """Stop what came before this message and was not yet heard; answer `Flushed` when silent."""

    type: Literal["flush"] = "flush"
    flush_id: int
    stream: int


class Interrupted(ServerMessage):
    """The answer to `Interrupt`: how much of the turn was heard."""

    type: Literal["interrupted"] = "interrupted"
    played_s: float
    source: Source


class Paused(ServerMessage):
    """Whether the speech is paused, after each change."""

    type: Literal["paused"] = "paused"
    is_paused: bool


class Floor(ServerMessage):
    """Who speaks, after each change.

    Attributes:
        has_floor: This client.
        floor_taken: Anybody.
        reason: Why it changed, or was refused.
    """

    type: Literal["floor"] = "floor"
    has_floor: bool
    floor_taken: bool
    reason: FloorReason


class Said(ServerMessage):
    """A text became a turn."""

    type: Literal["said"] = "said"
    request_id: str | None
    turn_id: int


class Pong(ServerMessage):
    """The answer to `Ping`."""

    type: Literal["pong"] = "pong"
    client_us: int
    server_us: int


class Stats(ServerMessage):
    """Once a second.

    Attributes:
        fps: Frames that left the session in the last second.
        num_frames: Since its start.
        skew_ms: Sound that left minus picture that left.
        stalls, stalled_s: Times that the timeline had to wait.
        missed_chunks, late_frames: See the core's statistics.
        lateness_p50_ms, lateness_p99_ms: Of frames after their due time.
        first_frame_ms: Of the last turn: speech at hand to first frame.
        latency: Of the last turn, in parts.
        encode_ms: CPU time of this client's video encoder for one frame, recent mean.
        video_kbps: What the encoder is told to aim at.
        num_dropped: Frames that this client did not get because it was slow.
        queued_ms: Video that waits for this client.
        rtt_ms: Of this connection; None while unknown.
        num_viewers: Clients that are in.
        cpu_cores: Cores that the server's process used in the last second; None if unknown.
        gpu_hours: That the session has held so far.
        price, currency: What the session has cost so far; None while a rate is unknown.
    """

    type: Literal["stats"] = "stats"
    stream: int
    fps: float
    num_frames: int
    skew_ms: float
    stalls: int
    stalled_s: float
    missed_chunks: int
    late_frames: int
    lateness_p50_ms: float
    lateness_p99_ms: float
    first_frame_ms: float | None = None
    latency: Latency | None = None
    encode_ms: float | None = None
    video_kbps: int | None = None
    num_dropped: int = 0
    queued_ms: float = 0.0
    rtt_ms: float | None = None
    num_viewers: int = 1
    cpu_cores: float | None = None
    gpu_hours: float = 0.0
    price: str | None = None
    currency: str | None = None


class Limit(ServerMessage):
    """A limit is near: it acts in ``in_s`` seconds.

    Attributes:
        kind: ``"connection"``: this connection will be closed. ``"input"``: the microphone's turn
            will be ended.
    """

    type: Literal["limit"] = "limit"
    kind: Literal["connection", "input"]
    in_s: float


class PhotoProblem(Message):
    """Something about a photo that does not prevent a character."""

    code: str
    message: str


class FaceFound(Message):
    """One face of several, in pixels of the upright photo."""

    index: int
    left: int
    top: int
    width: int
    height: int


class PhotoAccepted(ServerMessage):
    """The photo has become the character; a `stream` message follows or has come."""

    type: Literal["photo_accepted"] = "photo_accepted"
    warnings: list[PhotoProblem] = Field(default_factory=list)


class PhotoRejected(ServerMessage):
    """The photo cannot become a character; the one before stays.

    Attributes:
        code: ``"no_face"``, ``"several_faces"``, ``"face_too_small"``, ``"face_turned"``,
            ``"unreadable_image"``, ``"too_large"``, ``"incomplete"``, ``"busy"``,
            ``"not_accepted"``.
        message: What was found, with numbers, and what to do.
        faces: Of a photo of several: choose one by its index.
    """

    type: Literal["photo_rejected"] = "photo_rejected"
    code: str
    message: str
    faces: list[FaceFound] = Field(default_factory=list)


ErrorCode: TypeAlias = Literal[
    "unauthorized",
    "bad_hello",
    "unsupported_version",
    "no_common_codec",
    "capacity",
    "bad_message",
    "rate_limited",
    "not_speaker",
    "not_supported",
    "text_too_long",
    "too_many_texts",
    "voice_failed",
    "audio_format",
    "session_failed",
    "limit_reached",
    "too_slow",
    "going_away",
]


class ErrorMessage(ServerMessage):
    """Something was refused or has failed.

    Attributes:
        code: Stable; programs look at this one.
        message: For people. Never holds what the client sent.
        is_fatal: The connection is closed next.
        retry_after_s: When to try again; None: trying again will not help.
    """

    type: Literal["error"] = "error"
    code: ErrorCode
    message: str
    is_fatal: bool = False
    retry_after_s: float | None = None


SERVER_MESSAGES: tuple[type[ServerMessage], ...] = (
    Welcome,
    StreamInfo,
    StreamEnded,
    TurnStarted,
    TurnFinished,
    Flush,
    Interrupted,
    Paused,
    Floor,
    Said,
    Pong,
    Stats,
    Limit,
    PhotoAccepted,
    PhotoRejected,
    ErrorMessage,
)
"""All of them."""
