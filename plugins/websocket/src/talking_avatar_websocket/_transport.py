"""A session's frames to the viewers of a server.

Takes frames from one session. Gives the position that viewers have heard. Never decides who
watches: the server's audience does.
"""

from __future__ import annotations

import asyncio

import structlog

from talking_avatar import (
    AvatarSession,
    Frame,
    MediaInfo,
    Position,
    Transport,
    TransportClosed,
    TurnResult,
)
from talking_avatar_websocket._figures import Figures, parts_of
from talking_avatar_websocket._messages import TurnFinished, TurnStarted
from talking_avatar_websocket._server import AvatarServer
from talking_avatar_websocket._showing import Showing
from talking_avatar_websocket._video import load_codecs

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
        self._showing: Showing | None = None
        self._figures: Figures | None = None
        self._turn_id: int | None = None
        self._is_closed = False

    async def open(self, media: MediaInfo) -> None:
        """Begin a stream; viewers of an older one get this one instead.

        Raises:
            OSError: The port cannot be had.
            TransportClosed: This transport was used before.
        """
        if self._showing is not None or self._is_closed:
            raise TransportClosed("a transport serves one session: make a new one")
        if self._owns_server:
            await self.server.start()
        await asyncio.to_thread(load_codecs)
        self._figures = Figures(asyncio.get_running_loop().time())
        self._showing = self.server.audience.begin_stream(media)

    async def send(self, frame: Frame) -> None:
        """Encode a frame for those who watch, off the event loop; a live one is not waited for.

        Frames of a session go nowhere once a newer one is shown.

        Raises:
            TransportClosed: The transport is not open, or an encoder failed.
        """
        if self._showing is None or self._is_closed:
            raise TransportClosed("the transport is not open")
        showing = self._open
        if showing is None:
            return
        if showing.error is not None:
            _log.error("websocket_encoder_failed", error=type(showing.error).__name__)
            raise TransportClosed("an encoder failed") from showing.error
        self._note_turn(frame, showing)
        await showing.offer(frame)

    def _note_turn(self, frame: Frame, showing: Showing) -> None:
        if frame.speaking and frame.turn_id is not None and frame.turn_id != self._turn_id:
            self._turn_id = frame.turn_id
            pts_us = int(frame.pts * 1e6)
            started = TurnStarted(stream=showing.number, turn_id=frame.turn_id, pts_us=pts_us)
            self.server.send(started)

    async def interrupt(self) -> None:
        """Have viewers forget what they have not yet heard; wait for the speaker's word on it."""
        audience = self.server.audience
        if self._open is not None:
            await self._open.flush(audience.next_flush(), audience.speaker)

    def played_position(self) -> Position | None:
        """Give how far the speaker has heard, or the viewer that is furthest on; None: nobody."""
        return None if self._open is None else self._open.position(self.server.audience.speaker)

    def announce(self, result: TurnResult) -> None:
        """Tell viewers what became of a turn."""
        if self._open is None:
            return
        latency = result.latency
        self.server.send(
            TurnFinished(
                stream=self._open.number,
                turn_id=result.turn_id,
                played_s=result.played_s,
                source=result.source,
                interrupted=result.interrupted,
                stalls=result.stalls,
                latency=None if latency is None else parts_of(latency, self._transport_s),
            )
        )

    def report(self, session: AvatarSession, last: TurnResult | None = None) -> None:
        """Tell viewers the session's figures; call it about once a second.

        Args:
            session: This transport's.
            last: What became of its last turn; None before.
        """
        if self._open is None:
            return
        assert self._figures is not None
        now = asyncio.get_running_loop().time()
        stats = self._figures.stats(
            session, self._open.number, last, now, transport_s=self._transport_s
        )
        self._open.send_stats(stats)

    @property
    def _transport_s(self) -> float | None:
        """From a frame's hand-out to its being shown, as the speaker measured it of late."""
        speaker = self.server.audience.speaker
        latency_ms = None if speaker is None else speaker.feedback.latency_ms
        return None if latency_ms is None else latency_ms / 1e3

    @property
    def _open(self) -> Showing | None:
        """What is shown, while viewers see it."""
        showing = self._showing
        is_seen = showing is not None and showing.is_current and not self._is_closed
        return showing if is_seen else None

    async def aclose(self) -> None:
        """End the stream, and the server if it is this transport's own. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._showing is not None:
            self.server.audience.end_stream(self._showing)
            await self._showing.aclose()
        if self._owns_server:
            await self.server.aclose()
