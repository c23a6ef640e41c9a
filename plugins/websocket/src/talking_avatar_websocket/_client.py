"""A client in Python: for tests, recorders, and programs that show a character without a browser.

    async with connect("ws://127.0.0.1:8765/ws", token=token) as client:
        await client.say_text("Hello.")
        async for event in client:
            match event:
                case Picture(): show(event.image)
                case Sound(): play(event.samples)

Takes a URL. Gives what comes, in order. Runs no task of its own: a program that does not read is a
slow viewer, and gets what slow viewers get.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ssl import SSLContext
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed

from talking_avatar_websocket._decoding import StreamDecoder
from talking_avatar_websocket._messages import (
    AudioStart,
    AudioStop,
    BadMessage,
    ClientMessage,
    ErrorMessage,
    Feedback,
    Flush,
    Flushed,
    Hello,
    Interrupt,
    Pause,
    PhotoStart,
    Ping,
    Played,
    ReleaseFloor,
    RequestFloor,
    Resume,
    Role,
    SayText,
    ServerMessage,
    StreamInfo,
    Welcome,
    parse_server,
)
from talking_avatar_websocket._packets import (
    AudioCodec,
    BadPacket,
    Kind,
    MediaPacket,
    UploadPacket,
    VideoCodec,
)

MAX_SERVER_MESSAGE_BYTES = 2 * 1024 * 1024
"""What the protocol lets a server send at once."""
REPORT_EVERY_S = 0.1
PHOTO_PIECE_BYTES = 60 * 1024
_OPEN_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 1.0
"""For the goodbye of a server whose messages were not all read."""


class Refused(Exception):  # noqa: N818
    """The server did not let the client in.

    Attributes:
        code: Of the protocol's errors; None if it just closed.
        retry_after_s: When to try again; None: trying again will not help.
    """

    def __init__(
        self, message: str, *, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One frame.

    Attributes:
        packet: As it came.
        image: uint8 RGB (H, W, 3); None where the client does not decode.
    """

    packet: MediaPacket
    image: npt.NDArray[np.uint8] | None = None

    @property
    def pts_s(self) -> float:
        """When it is to be shown, on the stream's timeline."""
        return self.packet.pts_us / 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A packet of sound.

    Attributes:
        packet: As it came.
        samples: int16 (n,), mono; None where the client does not decode.
        sample_rate: Of ``samples``; 0 without.
    """

    packet: MediaPacket
    samples: npt.NDArray[np.int16] | None = None
    sample_rate: int = 0

    @property
    def pts_s(self) -> float:
        """When it is to be heard, on the stream's timeline."""
        return self.packet.pts_us / 1e6

    @property
    def end_us(self) -> int:
        """Where the next packet begins."""
        return self.packet.pts_us + self.packet.duration_us


ClientEvent: TypeAlias = Picture | Sound | ServerMessage
"""What an `AvatarClient` gives."""


class AvatarClient:
    """One connection. Made by `connect`.

    Attributes:
        welcome: What the server said first.
        stream: What it shows now; None before the first stream.
    """

    def __init__(self, socket: ClientConnection, *, decodes: bool, acknowledges: bool) -> None:
        self._socket = socket
        self._decoder = StreamDecoder() if decodes else None
        self._acknowledges = acknowledges
        self._heard_us = 0
        self._taken: Sound | None = None
        self._reported_at = float("-inf")
        self._num_uploads = 0
        self.stream: StreamInfo | None = None
        self.welcome: Welcome

    async def greet(self, hello: Hello) -> None:
        """Say hello and wait to be let in.

        Raises:
            Refused: The server does not let this client in.
        """
        await self.send(hello)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                while True:
                    answer = self._read(await self._socket.recv())
                    if isinstance(answer, Welcome):
                        self.welcome = answer
                        return
                    if isinstance(answer, ErrorMessage):
                        raise Refused(
                            answer.message, code=answer.code, retry_after_s=answer.retry_after_s
                        )
        except ConnectionClosed:
            raise Refused("the server closed the connection") from None
        except TimeoutError:
            raise Refused(f"the server said nothing for {_OPEN_TIMEOUT_S:g} s") from None

    def __aiter__(self) -> AvatarClient:
        return self

    async def __anext__(self) -> ClientEvent:
        """Wait for the next message, frame or sound; ends with the connection."""
        await self._report_taken()
        while True:
            try:
                data = await self._socket.recv()
            except ConnectionClosed:
                raise StopAsyncIteration from None
            event = self._read(data)
            if isinstance(event, Flush):
                await self._acknowledge(event)
            if isinstance(event, Sound):
                self._taken = event
            if event is not None:
                return event

    def _read(self, data: str | bytes) -> ClientEvent | None:
        try:
            if isinstance(data, str):
                message = parse_server(data)
                if isinstance(message, StreamInfo):
                    self._begin_stream(message)
                return message
            packet = MediaPacket.from_bytes(data)
        except (BadMessage, BadPacket):
            return None
        if packet is None or self.stream is None or packet.stream != self.stream.stream:
            return None
        if packet.kind == Kind.VIDEO:
            image = None if self._decoder is None else self._decoder.picture(packet)
            return Picture(packet, image)
        if self._decoder is None:
            return Sound(packet)
        samples, rate = self._decoder.sound(packet, self.stream.sample_rate)
        return Sound(packet, samples, rate)

    def _begin_stream(self, stream: StreamInfo) -> None:
        self.stream = stream
        self._heard_us = stream.pts_us
        self._taken = None
        if self._decoder is not None:
            self._decoder.reset()

    # -- positions

    async def _report_taken(self) -> None:
        """Count the sound that was given last as heard: the program asks for the next."""
        if self._taken is None or not self._acknowledges:
            return
        self._heard_us = max(self._heard_us, self._taken.end_us)
        self._taken = None
        now = asyncio.get_running_loop().time()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            await self.played(self._heard_us / 1e6)

    async def _acknowledge(self, flush: Flush) -> None:
        if self._acknowledges and self.stream is not None:
            await self.send(
                Flushed(flush_id=flush.flush_id, stream=self.stream.stream, pts_us=self._heard_us)
            )

    async def played(self, pts_s: float) -> None:
        """Say how far was heard; for clients made with ``acknowledges=False``."""
        if self.stream is not None:
            await self.send(Played(stream=self.stream.stream, pts_us=int(pts_s * 1e6)))

    async def flushed(self, flush: Flush, pts_s: float) -> None:
        """Answer a flush; likewise."""
        if self.stream is not None:
            await self.send(
                Flushed(flush_id=flush.flush_id, stream=self.stream.stream, pts_us=int(pts_s * 1e6))
            )

    # -- what a client may ask for

    async def send(self, message: ClientMessage) -> None:
        """Send a control message; does nothing when the connection is over."""
        try:
            await self._socket.send(message.to_text())
        except ConnectionClosed:
            return

    async def say_text(
        self, text: str, *, language: str | None = None, request_id: str | None = None
    ) -> None:
        """Have a text spoken."""
        await self.send(SayText(text=text, language=language, request_id=request_id))

    async def interrupt(self) -> None:
        """Cut what is being said."""
        await self.send(Interrupt())

    async def pause(self) -> None:
        """Fall silent for now."""
        await self.send(Pause())

    async def resume(self) -> None:
        """Go on."""
        await self.send(Resume())

    async def request_floor(self, *, take_over: bool = False) -> None:
        """Ask to be the speaker."""
        await self.send(RequestFloor(take_over=take_over))

    async def release_floor(self) -> None:
        """Be the speaker no more."""
        await self.send(ReleaseFloor())

    async def ping(self, client_us: int) -> None:
        """Ask for the server's clock."""
        await self.send(Ping(client_us=client_us))

    async def feedback(self, feedback: Feedback) -> None:
        """Say what is seen here."""
        await self.send(feedback)

    async def start_audio(self, *, codec: AudioCodec = "pcm", sample_rate: int = 48_000) -> None:
        """Begin to speak."""
        self._num_uploads = 0
        await self.send(AudioStart(codec=codec, sample_rate=sample_rate))

    async def send_audio(self, payload: bytes, *, codec: AudioCodec = "pcm") -> None:
        """Send a packet of speech: int16 PCM, or one Opus packet."""
        packet = UploadPacket(
            kind=Kind.MICROPHONE, codec=codec, sequence=self._num_uploads, payload=payload
        )
        self._num_uploads += 1
        await self._socket.send(packet.to_bytes())

    async def stop_audio(self) -> None:
        """End speaking."""
        await self.send(AudioStop())

    async def send_photo(self, data: bytes, *, face: int | None = None) -> None:
        """Ask for another character; the answer is an event."""
        await self.send(PhotoStart(num_bytes=len(data), face=face))
        for sequence, start in enumerate(range(0, len(data), PHOTO_PIECE_BYTES)):
            piece = data[start : start + PHOTO_PIECE_BYTES]
            packet = UploadPacket(kind=Kind.PHOTO, codec=None, sequence=sequence, payload=piece)
            await self._socket.send(packet.to_bytes())

    async def aclose(self) -> None:
        """Leave. Idempotent."""
        await self._socket.close()


class connect:  # noqa: N801 - used like a function, as in the websockets library
    """Connect to a character: ``async with connect(url, token=...) as client``.

    Args:
        url: Of the websocket: ``ws://`` or ``wss://``. Put no token into it.
        token: What the server asks for.
        role: ``"viewer"`` only watches.
        video, audio: Codecs to ask for, best first.
        decodes: Give images and samples, not only packets.
        acknowledges: Report what the program has taken as heard. A program that plays sound itself
            turns this off and calls `AvatarClient.played` and `AvatarClient.flushed`.
        ssl: A context for ``wss://``; None: the system's certificates.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        role: Role = "speaker",
        video: tuple[VideoCodec, ...] = ("vp8", "h264", "jpeg"),
        audio: tuple[AudioCodec, ...] = ("opus", "pcm"),
        decodes: bool = True,
        acknowledges: bool = True,
        ssl: SSLContext | None = None,
    ) -> None:
        self._url = url
        self._hello = Hello(token=token, role=role, video=list(video), audio=list(audio))
        self._decodes = decodes
        self._acknowledges = acknowledges
        self._ssl = ssl
        self._client: AvatarClient | None = None

    async def __aenter__(self) -> AvatarClient:
        socket = await open_socket(
            self._url,
            ssl=self._ssl,
            compression=None,
            max_size=MAX_SERVER_MESSAGE_BYTES,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=_CLOSE_TIMEOUT_S,
        )
        client = AvatarClient(socket, decodes=self._decodes, acknowledges=self._acknowledges)
        try:
            await client.greet(self._hello)
        except BaseException:
            await client.aclose()
            raise
        self._client = client
        return client

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
