"""Control messages: JSON objects with a `type`, as frozen pydantic models.

Unknown types give None and unknown fields are ignored, so that either side may be newer.
A message that is known and wrong raises `BadMessage`, whose text never holds what was sent.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from talking_avatar_websocket._limits import RateGroup
from talking_avatar_websocket._packets import AudioCodec, VideoCodec

VERSION = 1
"""Of the protocol. A change that an older peer would misread makes it 2."""

Micros = Annotated[int, Field(ge=-(2**62), le=2**62)]
Count = Annotated[int, Field(ge=0, le=2**62)]
StreamNumber = Annotated[int, Field(ge=0, le=2**32 - 1)]
RequestId = Annotated[str, Field(max_length=64)]
Role: TypeAlias = Literal["speaker", "viewer"]
Source: TypeAlias = Literal["acknowledged", "estimated", "handed_out"]


class BadMessage(ValueError):  # noqa: N818
    """A message is known and wrong; the text names its type and field and nothing else of it."""


class Message(BaseModel):
    """Base of all control messages."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", strict=True, allow_inf_nan=False, ser_json_inf_nan="null"
    )

    def to_text(self) -> str:
        """Give the JSON text."""
        return self.model_dump_json(exclude_none=False)


class ClientMessage(Message):
    """From client to server.

    Attributes:
        rate: The bucket that it is counted in.
        needs_floor: Whether only the speaker may send it.
    """

    rate: ClassVar[RateGroup] = "control"
    needs_floor: ClassVar[bool] = False


class Hello(ClientMessage):
    """The first message of a client.

    Attributes:
        version: The highest version that the client speaks.
        token: What lets it in; None where the server asks for none.
        video: Codecs that it can decode, best first. Unknown names are ignored.
        audio: Likewise.
        role: ``"speaker"`` asks for the floor if it is free.
    """

    type: Literal["hello"] = "hello"
    version: Annotated[int, Field(ge=1, le=1_000_000)] = VERSION
    token: Annotated[str, Field(max_length=512)] | None = None
    video: Annotated[list[Annotated[str, Field(max_length=32)]], Field(max_length=16)] = ["vp8"]
    audio: Annotated[list[Annotated[str, Field(max_length=32)]], Field(max_length=16)] = ["opus"]
    role: Role = "speaker"


class Ping(ClientMessage):
    """Asks for the server's clock.

    Attributes:
        client_us: The client's clock; comes back as it is.
    """

    type: Literal["ping"] = "ping"
    client_us: Micros


class Played(ClientMessage):
    """How far the client has played.

    Attributes:
        stream: Number of the stream.
        pts_us: End of the last sample that was heard, on the stream's timeline.
    """

    rate: ClassVar[RateGroup] = "feedback"
    type: Literal["played"] = "played"
    stream: StreamNumber
    pts_us: Micros


class Flushed(ClientMessage):
    """Acknowledges a `Flush`: nothing that came before it will be heard any more.

    Attributes:
        flush_id: Of the flush.
        stream, pts_us: As in `Played`, at the moment of silence.
    """

    rate: ClassVar[RateGroup] = "feedback"
    type: Literal["flushed"] = "flushed"
    flush_id: Count
    stream: StreamNumber
    pts_us: Micros


class Feedback(ClientMessage):
    """What the client sees; all optional.

    Attributes:
        shown_fps: Frames a second that it showed.
        num_dropped: Frames that it received and did not show.
        decode_queue: Frames that wait for its decoder.
        skew_ms: Sound heard minus picture shown.
        latency_ms: From the server's `sent_us` to shown, median of the last second.
    """

    rate: ClassVar[RateGroup] = "feedback"
    type: Literal["feedback"] = "feedback"
    shown_fps: Annotated[float, Field(ge=0, le=1_000)] | None = None
    num_dropped: Count | None = None
    decode_queue: Annotated[int, Field(ge=0, le=100_000)] | None = None
    skew_ms: Annotated[float, Field(ge=-1e6, le=1e6)] | None = None
    latency_ms: Annotated[float, Field(ge=-1e6, le=1e6)] | None = None


class NeedKey(ClientMessage):
    """The client's decoder has lost its way: send a key frame soon."""

    rate: ClassVar[RateGroup] = "key_frame"
    type: Literal["need_key"] = "need_key"


class RequestFloor(ClientMessage):
    """Asks to be the speaker.

    Attributes:
        take_over: Take the floor from whoever has it.
    """

    rate: ClassVar[RateGroup] = "floor"
    type: Literal["request_floor"] = "request_floor"
    take_over: bool = False


class ReleaseFloor(ClientMessage):
    """Gives the floor back."""

    rate: ClassVar[RateGroup] = "floor"
    needs_floor: ClassVar[bool] = True
    type: Literal["release_floor"] = "release_floor"


class Interrupt(ClientMessage):
    """Cut what is being said, and all that waits to be said."""

    needs_floor: ClassVar[bool] = True
    type: Literal["interrupt"] = "interrupt"


class Pause(ClientMessage):
    """Fall silent; `Resume` goes on with the next sample."""

    needs_floor: ClassVar[bool] = True
    type: Literal["pause"] = "pause"


class Resume(ClientMessage):
    """Go on after a `Pause`."""

    needs_floor: ClassVar[bool] = True
    type: Literal["resume"] = "resume"


class SayText(ClientMessage):
    """Speak a text with the server's voice.

    Attributes:
        text: Plain text. The server's limit on its length is in `Welcome`.
        language: BCP 47 tag such as ``"en"`` or ``"en-GB"``; None: the server's default.
        request_id: Comes back in `Said`.
    """

    rate: ClassVar[RateGroup] = "text"
    needs_floor: ClassVar[bool] = True
    type: Literal["say_text"] = "say_text"
    text: Annotated[str, Field(min_length=1, max_length=10_000)]
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,2}$")] | None = (
        None
    )
    request_id: RequestId | None = None


class AudioStart(ClientMessage):
    """Sound of a microphone begins; binary messages of kind 16 follow.

    Attributes:
        codec: ``"pcm"``: signed 16 bit, little-endian, mono; or ``"opus"``, mono.
        sample_rate: Of PCM. Opus needs none.
    """

    needs_floor: ClassVar[bool] = True
    type: Literal["audio_start"] = "audio_start"
    codec: AudioCodec = "pcm"
    sample_rate: Annotated[int, Field(ge=8_000, le=96_000)] = 48_000


class AudioStop(ClientMessage):
    """Sound of a microphone ends."""

    needs_floor: ClassVar[bool] = True
    type: Literal["audio_stop"] = "audio_stop"


class PhotoStart(ClientMessage):
    """A new photo comes; binary messages of kind 17 follow until ``num_bytes`` have come.

    Attributes:
        num_bytes: Size of the image file.
        face: Index of the face to take, when an earlier answer said there are several.
    """

    needs_floor: ClassVar[bool] = True
    type: Literal["photo_start"] = "photo_start"
    num_bytes: Annotated[int, Field(ge=1, le=2**40)]
    face: Annotated[int, Field(ge=0, le=100)] | None = None


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
    audio_input: list[str] = []


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
    reason: Literal["granted", "refused", "taken_over", "released", "changed", "not_allowed"]


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
        price: Of these, with its currency unknown to the protocol; None while no rate is known.
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
    warnings: list[PhotoProblem] = []


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
    faces: list[FaceFound] = []


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


CLIENT_MESSAGES: tuple[type[ClientMessage], ...] = (
    Hello,
    Ping,
    Played,
    Flushed,
    Feedback,
    NeedKey,
    RequestFloor,
    ReleaseFloor,
    Interrupt,
    Pause,
    Resume,
    SayText,
    AudioStart,
    AudioStop,
    PhotoStart,
)
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

M = TypeVar("M", bound=Message)


def _by_type(models: tuple[type[M], ...]) -> dict[str, type[M]]:
    return {model.model_fields["type"].default: model for model in models}


_CLIENT = _by_type(CLIENT_MESSAGES)
_SERVER = _by_type(SERVER_MESSAGES)


def parse_client(text: str) -> ClientMessage | None:
    """Read what a client sent; None if its type is unknown.

    Raises:
        BadMessage: It is no JSON object with a type, or a known one is wrong.
    """
    return _parse(text, _CLIENT)


def parse_server(text: str) -> ServerMessage | None:
    """Read what a server sent; None if its type is unknown.

    Raises:
        BadMessage: As for `parse_client`.
    """
    return _parse(text, _SERVER)


def _parse(text: str, models: dict[str, type[M]]) -> M | None:
    try:
        fields: Any = from_json(text, allow_inf_nan=False)
    except ValueError:
        raise BadMessage("the text is no JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise BadMessage("the text is no JSON object with a type")
    model = models.get(fields["type"])
    if model is None:
        return None
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        known = model.model_fields
        field = str(first["loc"][0]) if first["loc"] else ""
        where = f" in field {field}" if field in known else ""
        kind = model.model_fields["type"].default
        raise BadMessage(f"{kind}: {first['type']}{where}") from None
