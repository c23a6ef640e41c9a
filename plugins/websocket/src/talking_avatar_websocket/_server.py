"""`AvatarServer`: one port that serves the page and the websocket to all viewers of a character.

Takes connections. Gives their wishes as events, and them what a `WebsocketTransport` is handed.
Never makes a character: a session does, and may be replaced by another while viewers stay.

Everything that runs lives in one owner task; `start` and `aclose` only send it messages, so that
they may run in different tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final

import anyio
import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from talking_avatar_websocket._access import Access, allows_origin, is_loopback
from talking_avatar_websocket._audience import Audience
from talking_avatar_websocket._connection import Connection
from talking_avatar_websocket._events import EventQueue, SpeechCame
from talking_avatar_websocket._http import SOCKET_PATH, Site, forbidden
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import ErrorCode, ErrorMessage, ServerMessage
from talking_avatar_websocket._protocol import ClientEvent, ServerProtocol
from talking_avatar_websocket._viewer import Offering, Viewer
from talking_avatar_websocket._wishes import Wishes

_log = structlog.stdlib.get_logger("talking_avatar.websocket")

_SEND_BUFFER_BYTES: Final = 128 * 1024
"""Of the kernel, for one connection: 0.6 s at the full rate. What lies there can't be dropped any
more when a viewer falls behind, and the default grows to megabytes."""
_WRITE_LIMIT_BYTES: Final = 32 * 1024
"""Of the library, likewise."""
_QUEUED_MESSAGES: Final = 4
"""Received and not yet read, for one connection; each is at most 64 KiB."""
_CLOSE_TIMEOUT_S: Final = 2.0

_silent = logging.getLogger("talking_avatar_websocket.wire")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
_silent.disabled = True
"""For the websocket library, whose log holds requests and messages of clients."""


class AvatarServer:
    """Serves one character to its viewers.

        async with AvatarServer(port=8765) as server:
            transport = WebsocketTransport(server)
            async with AvatarSession("face.jpg", transport=transport) as session: ...

    Args:
        host: Address to listen on.
        port: TCP port; 0 takes a free one, see `url`.
        token: What a client must present; None: everybody who can connect may. Needed where
            ``host`` is not this machine only.
        viewer_token: Lets a client watch and not speak.
        ssl: A context with the server's certificate: then ``https`` and ``wss``.
        allowed_origins: Origins such as ``"https://example.org"`` of pages elsewhere that may
            connect.
        offering: Codecs, rates, and what clients may ask for.
        limits: What clients are held to.
        site: Files served beside the websocket; None: the page of this package.

    Raises:
        ValueError: ``host`` is reachable from elsewhere and there is no token.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8765,
        token: str | None = None,
        viewer_token: str | None = None,
        ssl: SSLContext | None = None,
        allowed_origins: tuple[str, ...] = (),
        offering: Offering | None = None,
        limits: Limits | None = None,
        site: Site | None = None,
    ) -> None:
        self._access = Access(token, viewer_token)
        if self._access.is_open and not is_loopback(host):
            raise ValueError(
                f"listening on {host} lets others in: pass token=..., or host='127.0.0.1'"
            )
        self._host, self._port = host, port
        self._ssl = ssl
        self._allowed_origins = frozenset(allowed_origins)
        self._offering = offering or Offering()
        self._limits = limits or Limits()
        self._site = site or Site()
        self._events = EventQueue()
        self._wishes = Wishes(self._offering.features)
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
        self._connections: set[Connection] = set()
        self._audience: Audience | None = None
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    # -- lifecycle

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The port cannot be had.
            RuntimeError: The server was started before.
        """
        if self._owner is not None:
            raise RuntimeError("a server starts once: make a new one")
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(started), name="talking_avatar.websocket")
        try:
            await started
        except BaseException:
            self._owner.cancel()
            await asyncio.wait([self._owner])
            raise

    async def aclose(self) -> None:
        """Say goodbye to everybody and stop listening. Idempotent; takes some seconds at most."""
        self._closing.set()
        if self._owner is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._owner])

    async def __aenter__(self) -> AvatarServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _own(self, started: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._audience = Audience(self._offering, self._limits, now=loop.time, on_event=self._note)
        try:
            server = await self._listen()
        except Exception as error:
            started.set_exception(error)
            return
        try:
            self._port = server.sockets[0].getsockname()[1]
            if not started.done():
                started.set_result(None)
            await self._watch()
        finally:
            self._events.close()
            self._refuse_all("going_away", "the server shuts down")
            server.close(close_connections=False)
            await server.wait_closed()

    async def _listen(self) -> Server:
        limits = self._limits
        # The library's deadline begins after the handshake of TLS, which has one of its own.
        tls: dict[str, Any] = (
            {} if self._ssl is None else {"ssl_handshake_timeout": limits.open_timeout_s}
        )
        return await serve(
            self._serve_connection,
            self._host,
            self._port,
            ssl=self._ssl,
            process_request=self._answer_request,
            compression=None,  # media does not compress further, and a context costs 300 KB each
            open_timeout=limits.open_timeout_s,
            ping_interval=limits.heartbeat_s,
            ping_timeout=limits.heartbeat_s,
            close_timeout=_CLOSE_TIMEOUT_S,
            max_size=limits.max_message_bytes,
            max_queue=_QUEUED_MESSAGES,
            write_limit=_WRITE_LIMIT_BYTES,
            server_header=None,
            logger=_silent,
            create_connection=_limited_connection(limits.max_connections),
            **tls,
        )

    async def _watch(self) -> None:
        """Look at the viewers once a second until the server is closed."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._closing.is_set():
            due = max(due + 1.0, loop.time())
            try:
                async with asyncio.timeout_at(due):
                    await self._closing.wait()
            except TimeoutError:
                self.audience.tick()

    # -- connections

    def _answer_request(self, socket: ServerConnection, request: Request) -> Response | None:
        """Serve a file, or let the upgrade go on."""
        if request.path.partition("?")[0] != SOCKET_PATH:
            return self._site.respond(request.path)
        if len(request.headers.get_all("Origin")) > 1 or len(request.headers.get_all("Host")) != 1:
            return forbidden("one Host and at most one Origin")
        is_allowed = allows_origin(
            request.headers.get("Origin"),
            request.headers.get("Host"),
            allowed=self._allowed_origins,
            is_local=is_loopback(self._host),
        )
        return None if is_allowed else forbidden("pages of this origin may not connect")

    async def _serve_connection(self, socket: ServerConnection) -> None:
        _bound_send_buffer(socket)
        now = asyncio.get_running_loop().time()
        protocol = ServerProtocol(self._limits, self._access, now=now)
        connection = Connection(socket, protocol, self.audience, self._limits, self._note)
        self._connections.add(connection)
        self._waiting[connection] = None
        self._make_room()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._waiting.pop(connection, None)
            self._note_left(connection)

    def _make_room(self) -> None:
        """Close the oldest of too many connections that have not said hello."""
        for connection in [c for c in self._waiting if c.viewer is not None]:
            del self._waiting[connection]
        while len(self._waiting) > self._limits.max_waiting:
            oldest, _ = self._waiting.popitem(last=False)
            oldest.protocol.refuse("bad_hello", "too many connections wait without a hello")
            oldest.close()

    def _note_left(self, connection: Connection) -> None:
        viewer = connection.viewer
        reason = connection.protocol.closing
        if viewer is not None:
            self._wishes.forget(viewer)
            _log.info(
                "websocket_viewer_left",
                viewer=viewer.number,
                reason=reason or "closed",
                dropped_video=viewer.outbox.num_dropped_video,
                dropped_sound=viewer.outbox.num_dropped_sound,
            )
        elif reason is not None:
            _log.info("websocket_client_refused", reason=reason)

    def _refuse_all(self, code: ErrorCode, message: str) -> None:
        for connection in tuple(self._connections):
            connection.protocol.refuse(code, message, retry_after_s=1.0)
            connection.close()

    def _note(self, viewer: Viewer, event: ClientEvent) -> None:
        """Hand on what a speaker asks for, or say why not."""
        wish = self._wishes.of(viewer, event)
        if wish is None or self._events.put(wish) or isinstance(wish, SpeechCame):
            return
        busy = "the server is busy: try again"
        viewer.send(ErrorMessage(code="capacity", message=busy, retry_after_s=1.0))

    # -- for transports and applications

    @property
    def audience(self) -> Audience:
        """Everybody who watches. Raises `RuntimeError` before `start`."""
        if self._audience is None:
            raise RuntimeError("start the server first: async with AvatarServer(...)")
        return self._audience

    @property
    def url(self) -> str:
        """Where the page is. Holds no token."""
        scheme = "http" if self._ssl is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._port}/"

    @property
    def socket_url(self) -> str:
        """Where the websocket is. Holds no token."""
        return "ws" + self.url.removeprefix("http").removesuffix("/") + SOCKET_PATH

    @property
    def num_viewers(self) -> int:
        """Clients that are in."""
        return len(self.audience.viewers)

    def events(self) -> EventQueue:
        """Give what speakers ask for: ``async for event in server.events()``. One reader."""
        return self._events

    def send(self, message: ServerMessage, *, to: int | None = None) -> None:
        """Send a control message to everybody, or to one viewer if it is still there."""
        if to is None:
            self.audience.send(message)
        elif (viewer := self.audience.find(to)) is not None:
            viewer.send(message)

    def fail(self, message: str) -> None:
        """The session failed for good: tell everybody and close their connections."""
        self._refuse_all("session_failed", message)


def _bound_send_buffer(socket: ServerConnection) -> None:
    import socket as sockets

    raw = socket.transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER_BYTES)


def _limited_connection(max_connections: int) -> type[ServerConnection]:
    """Give a kind of connection of which only so many live at a time."""

    class LimitedConnection(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            if len(self.server.handler_tasks) > max_connections:
                self.transport.abort()

    return LimitedConnection
