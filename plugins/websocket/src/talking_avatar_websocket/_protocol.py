"""One connection without I/O: what came in, and when, into events and answers.

Takes: messages as they came, the time, and the decisions of whoever owns it (`accept`, `refuse`,
`has_floor`). Gives: events, messages to send, and whether to close. Never: awaits, reads a clock,
opens a socket, or repeats what a client sent.

    protocol = ServerProtocol(limits, access, now=now)
    for event in protocol.receive(data, now): ...
    for message in protocol.take_outgoing(): ...
    if protocol.closing is not None: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from talking_avatar_websocket._access import Access, Permission
from talking_avatar_websocket._limits import Buckets, Limits, RateGroup
from talking_avatar_websocket._messages import (
    VERSION,
    AudioStart,
    AudioStop,
    BadMessage,
    ClientMessage,
    ErrorCode,
    ErrorMessage,
    Hello,
    Limit,
    PhotoRejected,
    PhotoStart,
    Ping,
    Pong,
    SayText,
    ServerMessage,
    parse_client,
)
from talking_avatar_websocket._packets import AudioCodec, BadPacket, Bytes, Kind, UploadPacket

CLOSE_CODES: dict[ErrorCode, int] = {
    "bad_hello": 4400,
    "unauthorized": 4401,
    "unsupported_version": 4406,
    "too_slow": 4408,
    "limit_reached": 4410,
    "no_common_codec": 4415,
    "bad_message": 4422,
    "rate_limited": 4429,
    "capacity": 4503,
    "going_away": 1001,
    "session_failed": 1011,
}
"""Of errors that end a connection."""
INPUT_WARNING_S = 10.0
"""How long before its end a microphone's turn is announced to end."""
CONNECTION_WARNINGS_S = (60.0, 10.0)
"""How long before its end a connection is announced to end."""
_TELL_EVERY_S = 1.0
"""How often a client is told that it sends too much."""


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """A client that may come in asks to: answer with `ServerProtocol.accept` or `refuse`."""

    hello: Hello
    permission: Permission


@dataclass(frozen=True, slots=True)
class MicrophoneSound:
    """One packet of sound of the speaker's microphone."""

    codec: AudioCodec
    payload: Bytes


@dataclass(frozen=True, slots=True)
class UploadedPhoto:
    """An image file that has come whole.

    Attributes:
        data: The file.
        face: Index of the face to take; None: there should be only one.
    """

    data: bytes
    face: int | None


ClientEvent: TypeAlias = HelloReceived | MicrophoneSound | UploadedPhoto | ClientMessage
"""What `ServerProtocol.receive` gives. `Ping` and what is refused never come out."""


class ServerProtocol:
    """The server's side of one connection.

    Args:
        limits: What the client is held to.
        access: Who may come in.
        now: Seconds of a clock that never goes back; all other times are of the same one.

    Attributes:
        has_floor: Whether this client is the speaker; set by the owner.
        permission: What its token lets it do; None before hello.
        closing: What the connection is to be closed with, once it is; an error was queued then.
    """

    def __init__(self, limits: Limits, access: Access, *, now: float) -> None:
        self._limits = limits
        self._access = access
        self._opened = now
        self._buckets = Buckets(limits.rates)
        self._outgoing: list[ServerMessage] = []
        self._told_at = -_TELL_EVERY_S
        self._is_in = False
        self._is_hello_pending = False
        self._input: AudioStart | None = None
        self._input_until = 0.0
        self._is_input_warned = False
        self._upload: _Upload | None = None
        self._connection_warnings = list(CONNECTION_WARNINGS_S)
        self.has_floor = False
        self.permission: Permission | None = None
        self.closing: ErrorCode | None = None

    # -- what the owner decides

    def accept(self) -> None:
        """Let the client in; the owner sends a welcome."""
        self._is_in, self._is_hello_pending = True, False

    def refuse(self, code: ErrorCode, text: str, *, retry_after_s: float | None = None) -> None:
        """Close the connection and say why. Only the first reason counts."""
        if self.closing is None:
            self._say(code, text, is_fatal=True, retry_after_s=retry_after_s)
            self.closing = code

    def send(self, message: ServerMessage) -> None:
        """Queue a message."""
        self._outgoing.append(message)

    def take_outgoing(self) -> list[ServerMessage]:
        """Give what is to be sent, in order; each message once."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def lose_floor(self) -> Iterator[ClientEvent]:
        """The client is no longer the speaker: its sound and its upload end here."""
        self.has_floor = False
        self._upload = None
        if self._input is not None:
            self._input = None
            yield AudioStop()

    @property
    def is_in(self) -> bool:
        """Whether the client was let in."""
        return self._is_in

    # -- time

    def next_deadline(self) -> float | None:
        """When `tick` must be called at the latest; None: never."""
        deadlines: list[float] = []
        if not self._is_in:
            deadlines.append(self._opened + self._limits.hello_timeout_s)
        elif self._limits.max_connection_s is not None:
            warn_s = self._connection_warnings[0] if self._connection_warnings else 0.0
            deadlines.append(self._opened + self._limits.max_connection_s - warn_s)
        if self._input is not None:
            warn_s = 0.0 if self._is_input_warned else INPUT_WARNING_S
            deadlines.append(self._input_until - warn_s)
        if self._upload is not None:
            deadlines.append(self._upload.until)
        return min(deadlines, default=None)

    def tick(self, now: float) -> list[ClientEvent]:
        """Let the deadlines that have passed act."""
        events: list[ClientEvent] = []
        if not self._is_in and now >= self._opened + self._limits.hello_timeout_s:
            self.refuse("bad_hello", f"no hello within {self._limits.hello_timeout_s:g} s")
        self._tick_connection(now)
        if self._input is not None:
            left_s = self._input_until - now
            if left_s <= 0:
                self._input = None
                events.append(AudioStop())
            elif left_s <= INPUT_WARNING_S and not self._is_input_warned:
                self._is_input_warned = True
                self.send(Limit(kind="input", in_s=round(left_s, 3)))
        if self._upload is not None and now >= self._upload.until:
            self._end_upload("incomplete", "the photo did not come whole in time: send it again")
        return events

    def _tick_connection(self, now: float) -> None:
        if self._limits.max_connection_s is None or not self._is_in:
            return  # before, the deadline of the hello acts
        left_s = self._opened + self._limits.max_connection_s - now
        if left_s <= 0:
            self.refuse("limit_reached", "this connection has lasted as long as it may")
            return
        is_due = False
        while self._connection_warnings and left_s <= self._connection_warnings[0]:
            self._connection_warnings.pop(0)
            is_due = True
        if is_due:
            self.send(Limit(kind="connection", in_s=round(left_s, 3)))

    # -- what comes in

    def receive(self, data: str | bytes, now: float) -> list[ClientEvent]:
        """Take one message; give what follows from it.

        After `closing` is set, everything is ignored.
        """
        if self.closing is not None or not self._allows("any", now):
            return []
        try:
            if not self._is_in:
                return self._receive_hello(data, now)
            if isinstance(data, str):
                message = parse_client(data)
                return [] if message is None else self._receive_message(message, now)
            packet = UploadPacket.from_bytes(data)
            return [] if packet is None else self._receive_packet(packet, now)
        except (BadMessage, BadPacket) as error:
            self._note_bad(str(error), now)
            return []

    def _receive_hello(self, data: str | bytes, now: float) -> list[ClientEvent]:
        if self._is_hello_pending:
            return []
        if not isinstance(data, str):
            self.refuse("bad_hello", "the first message must be a hello, as text")
            return []
        try:
            hello = parse_client(data)
        except BadMessage as error:
            self.refuse("bad_hello", f"the first message must be a valid hello: {error}")
            return []
        if not isinstance(hello, Hello):
            self.refuse("bad_hello", "the first message must be a hello")
            return []
        if hello.version < VERSION:
            self.refuse("unsupported_version", f"this server speaks version {VERSION}")
            return []
        self.permission = self._access.check(hello.token)
        if self.permission is None:
            self.refuse("unauthorized", "the token is wrong or missing")
            return []
        self._is_hello_pending = True
        return [HelloReceived(hello, self.permission)]

    def _receive_message(self, message: ClientMessage, now: float) -> list[ClientEvent]:
        if not self._allows(message.rate, now):
            return []
        if message.needs_floor and not self.has_floor:
            kind = type(message).model_fields["type"].default
            self._say("not_speaker", f"{kind} is for the speaker: request_floor comes first")
            return []
        match message:
            case Ping():
                self.send(Pong(client_us=message.client_us, server_us=int(now * 1e6)))
                return []
            case Hello():
                raise BadMessage("hello: it was said before")
            case SayText() if len(message.text) > self._limits.max_text_chars:
                allowed = self._limits.max_text_chars
                self._say("text_too_long", f"a text has at most {allowed} characters")
                return []
            case AudioStart():
                return self._start_input(message, now)
            case AudioStop():
                if self._input is None:
                    return []
                self._input = None
            case PhotoStart():
                self._start_upload(message, now)
                return []
        return [message]

    def _start_input(self, message: AudioStart, now: float) -> list[ClientEvent]:
        events: list[ClientEvent] = [] if self._input is None else [AudioStop()]
        self._input, self._is_input_warned = message, self._limits.max_input_s <= INPUT_WARNING_S
        self._input_until = now + self._limits.max_input_s
        return [*events, message]

    def _start_upload(self, message: PhotoStart, now: float) -> None:
        self._upload = None
        if message.num_bytes > self._limits.max_photo_bytes:
            allowed = self._limits.max_photo_bytes
            self._end_upload(
                "too_large", f"an image file has at most {allowed:,} bytes: make it smaller"
            )
            return
        self._upload = _Upload(message, now + self._limits.photo_timeout_s)

    def _receive_packet(self, packet: UploadPacket, now: float) -> list[ClientEvent]:
        group: RateGroup = "audio" if packet.kind == Kind.MICROPHONE else "photo"
        if not self._allows(group, now):
            return []
        if packet.codec is not None:
            if self._input is None:
                return []  # late packets of a turn that was ended are no error
            if packet.codec != self._input.codec:
                raise BadPacket("sound of another codec than audio_start said")
            if packet.codec == "pcm" and len(packet.payload) % 2:
                raise BadPacket("half a sample of sound")
            return [MicrophoneSound(packet.codec, packet.payload)]
        return self._receive_photo(packet)

    def _receive_photo(self, packet: UploadPacket) -> list[ClientEvent]:
        upload = self._upload
        if upload is None:
            return []
        if packet.sequence != upload.num_pieces:
            self._end_upload("incomplete", "a piece of the photo is missing: send it again")
            return []
        upload.num_pieces += 1
        upload.data += packet.payload
        missing = upload.message.num_bytes - len(upload.data)
        if missing > 0:
            return []
        if missing < 0:
            self._end_upload("incomplete", "more came than photo_start said: send it again")
            return []
        self._upload = None
        return [UploadedPhoto(bytes(upload.data), upload.message.face)]

    def _end_upload(self, code: str, text: str) -> None:
        self._upload = None
        self.send(PhotoRejected(code=code, message=text))

    # -- what is refused

    def _allows(self, group: RateGroup, now: float) -> bool:
        if self._buckets.take(group, now):
            return True
        if not self._buckets.take("dropped", now):
            self.refuse("rate_limited", "far too many messages")
        elif now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            self._say("rate_limited", f"too many messages ({group}): those beyond are dropped")
        return False

    def _note_bad(self, text: str, now: float) -> None:
        if self._buckets.take("bad", now):
            self._say("bad_message", text)
        else:
            self.refuse("bad_message", "too many messages that make no sense")

    def _say(
        self,
        code: ErrorCode,
        text: str,
        *,
        is_fatal: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        self._outgoing.append(
            ErrorMessage(code=code, message=text, is_fatal=is_fatal, retry_after_s=retry_after_s)
        )


class _Upload:
    """A photo on its way."""

    def __init__(self, message: PhotoStart, until: float) -> None:
        self.message = message
        self.until = until
        self.data = bytearray()
        self.num_pieces = 0
