"""Control messages from client to server."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from talking_avatar_websocket._limits import RateGroup
from talking_avatar_websocket._messages.base import (
    VERSION,
    Count,
    Message,
    Micros,
    RequestId,
    StreamNumber,
)
from talking_avatar_websocket._packets import AudioCodec

CodecName = Annotated[str, Field(max_length=32)]
Role: TypeAlias = Literal["speaker", "viewer"]


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
    video: list[CodecName] = Field(default_factory=lambda: ["vp8"], max_length=16)
    audio: list[CodecName] = Field(default_factory=lambda: ["opus"], max_length=16)
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
"""All of them."""
