"""A session's frames to the viewers of a server.

Takes frames from one session. Gives the position that viewers have heard. Never decides who
watches: the server's audience does.
"""

from __future__ import annotations

import asyncio

import structlog

from talking_avatar import Frame, MediaInfo, Position, Transport, TransportClosed, TurnResult
from talking_avatar_websocket._broadcast import Broadcast
from talking_avatar_websocket._messages import Latency, TurnFinished, TurnStarted
from talking_avatar_websocket._server import AvatarServer

_log = structlog.stdlib.get_logger("talking_avatar.websocket")


class WebsocketTransport(Transport):
    """Carry a session to browsers.

        transport = WebsocketTransport(port=8765)
        async with AvatarSession("face.jpg", transport=transport, pixel_format="i420") as session:
            print(transport.server.url)

    Ask the session for ``pixel_format="i420"``: it is what the encoders take.

    Args:
        server: A server that was started, for viewers that stay while sessions come and go; the
            newest session is shown. None: this transport opens one of its own, and closes it.
        host, port, token: Of its own server; see `AvatarServer`.
    """

    def __init__(
        self,
        server: AvatarServer | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 8765,
        token: str | None = None,
    ) -> None:
        self._owns_server = server is None
        self.server = server or AvatarServer(host=host, port=port, token=token)
        self._broadcast: Broadcast | None = None
        self._turn_id: int | None = None
        self._is_closed = False

    async def open(self, media: MediaInfo) -> None:
        """Begin a stream; viewers of an older one get this one instead.

        Raises:
            OSError: The port cannot be had.
            TransportClosed: This transport was used before.
        """
        if self._broadcast is not None or self._is_closed:
            raise TransportClosed("a transport serves one session: make a new one")
        if self._owns_server:
            await self.server.start()
        self._broadcast = self.server.audience.begin_stream(media)

    async def send(self, frame: Frame) -> None:
        """Encode a frame for those who watch, off the event loop; a live one is not waited for.

        Raises:
            TransportClosed: The transport was closed, a newer session is shown, or an encoder
                failed.
        """
        broadcast = self._opened
        audience = self.server.audience
        if broadcast.error is not None:
            _log.error("websocket_encoder_failed", error=type(broadcast.error).__name__)
            raise TransportClosed("an encoder failed") from broadcast.error
        if not audience.is_shown(broadcast):
            raise TransportClosed("a newer session is shown to the viewers")
        self._note_turn(frame)
        video, audio = audience.wanted()
        jobs = broadcast.offer(frame, video, audio)
        audience.note_sent((frame.index + 1) / broadcast.media.fps)
        if broadcast.media.clock == "unpaced" and jobs:
            await asyncio.wait(jobs)

    def _note_turn(self, frame: Frame) -> None:
        if frame.speaking and frame.turn_id is not None and frame.turn_id != self._turn_id:
            self._turn_id = frame.turn_id
            self.server.send(
                TurnStarted(
                    stream=self._opened.number,
                    turn_id=frame.turn_id,
                    pts_us=int(frame.pts * 1e6),
                )
            )

    async def interrupt(self) -> None:
        """Have viewers forget what they have not yet heard; wait for the speaker's word on it."""
        broadcast = self._broadcast
        if broadcast is not None and self.server.audience.is_shown(broadcast):
            await self.server.audience.flush(broadcast)

    def played_position(self) -> Position | None:
        """Give how far the speaker has heard, or the viewer that is furthest on; None: nobody."""
        broadcast = self._broadcast
        if broadcast is None or not self.server.audience.is_shown(broadcast):
            return None
        return self.server.audience.position()

    def announce(self, result: TurnResult) -> None:
        """Tell viewers what became of a turn."""
        broadcast = self._broadcast
        if broadcast is None or not self.server.audience.is_shown(broadcast):
            return
        latency = result.latency
        self.server.send(
            TurnFinished(
                stream=broadcast.number,
                turn_id=result.turn_id,
                played_s=result.played_s,
                source=result.source,
                interrupted=result.interrupted,
                stalls=result.stalls,
                latency=None if latency is None else latency_of(latency),
            )
        )

    @property
    def stream(self) -> int:
        """Number of the stream that viewers see."""
        return self._opened.number

    @property
    def _opened(self) -> Broadcast:
        if self._broadcast is None or self._is_closed:
            raise TransportClosed("the transport is not open")
        return self._broadcast

    async def aclose(self) -> None:
        """End the stream, and the server if it is this transport's own. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        broadcast = self._broadcast
        if broadcast is not None:
            self.server.audience.end_stream(broadcast)
            await broadcast.aclose()
        if self._owns_server:
            await self.server.aclose()


def latency_of(latency: object) -> Latency:
    """Give a turn's latency as viewers get it."""
    return Latency.model_validate({name: getattr(latency, name) for name in Latency.model_fields})
