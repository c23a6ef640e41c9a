"""The thin shell around one socket: reads into the protocol, writes out of the outbox.

Decides nothing: `ServerProtocol` says what a message means, `Audience` who gets what, `Outbox` what
is sent next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from talking_avatar_websocket._audience import Audience
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import (
    Feedback,
    Flushed,
    NeedKey,
    Played,
    ReleaseFloor,
    RequestFloor,
)
from talking_avatar_websocket._outbox import Outbox
from talking_avatar_websocket._protocol import (
    CLOSE_CODES,
    ClientEvent,
    HelloReceived,
    ServerProtocol,
)
from talking_avatar_websocket._viewer import Viewer

GOODBYE_S = 2.0
"""For the last messages of a connection and its closing handshake."""


class Connection:
    """One client's connection, from the HTTP upgrade to its end.

    Args:
        socket: After the upgrade.
        protocol: Fresh.
        audience: That the client may join.
        limits: For how long a stuck client is kept.
        on_event: Told of what is not answered here.

    Attributes:
        viewer: The client; None until it was let in.
    """

    def __init__(
        self,
        socket: ServerConnection,
        protocol: ServerProtocol,
        audience: Audience,
        limits: Limits,
        on_event: Callable[[Viewer, ClientEvent], None],
    ) -> None:
        self._socket = socket
        self._audience = audience
        self._limits = limits
        self._on_event = on_event
        self._outbox = Outbox(limits)
        self._to_send = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self.protocol = protocol
        self.viewer: Viewer | None = None

    async def run(self) -> None:
        """Serve until the connection is over; never raises what the far end did."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                await self._read()
                self._wake()
                if self.protocol.closing is None:
                    tasks.cancel_scope.cancel()  # nobody is there to be written to
        finally:
            if self.viewer is not None:
                self._audience.leave(self.viewer)

    def close(self) -> None:
        """Send what the protocol has to say, then close; `ServerProtocol.refuse` comes first.

        A client that does not take its goodbye is cut off after two seconds.
        """
        self._wake()
        loop = asyncio.get_running_loop()
        loop.call_later(GOODBYE_S, self._socket.transport.abort)

    def _wake(self) -> None:
        self._to_send.set()

    # -- in

    async def _read(self) -> None:
        while self.protocol.closing is None:
            try:
                async with asyncio.timeout_at(self.protocol.next_deadline()):
                    data = await self._socket.recv()
            except TimeoutError:
                events = self.protocol.tick(self._now())
            except ConnectionClosed:
                return
            else:
                events = self.protocol.receive(data, self._now())
            for event in events:
                self._handle(event)
            self._collect()
            await asyncio.sleep(0)  # one that floods gets no more turns than all others

    def _collect(self) -> None:
        """Queue what the protocol has to say."""
        for message in self.protocol.take_outgoing():
            self._outbox.put_control(message.to_text())
        if self._outbox.is_overfull:
            self.protocol.refuse("too_slow", "too many messages wait for this client")
            self._socket.transport.abort()
        self._wake()

    def _handle(self, event: ClientEvent) -> None:
        if isinstance(event, HelloReceived):
            self.viewer = self._audience.join(self.protocol, event.hello, self._outbox, self._wake)
            return
        viewer = self.viewer
        assert viewer is not None
        viewer.rtt_s = self._socket.latency or None
        showing = self._audience.showing
        match event:
            case Played() | Flushed():
                if showing is not None:
                    showing.report(viewer, event)
            case Feedback():
                viewer.feedback = event
            case NeedKey():
                if showing is not None:
                    showing.serve_key(viewer, is_lost=True)
            case RequestFloor():
                self._audience.request_floor(viewer, take_over=event.take_over)
            case ReleaseFloor():
                self._audience.release_floor(viewer)
            case _:
                self._on_event(viewer, event)

    # -- out

    async def _write(self) -> None:
        try:
            while True:
                if self.protocol.closing is not None:
                    await self._say_goodbye()
                    return
                message = self._outbox.take(self._now())
                if message is not None:
                    async with asyncio.timeout(self._limits.stuck_s):
                        await self._socket.send(message)
                    continue
                if self.viewer is not None and self._audience.showing is not None:
                    self._audience.showing.serve_key(self.viewer)
                self._to_send.clear()
                await self._to_send.wait()
        except ConnectionClosed:
            return
        except TimeoutError:
            self.protocol.refuse("too_slow", "this client takes nothing")
            self._socket.transport.abort()

    async def _say_goodbye(self) -> None:
        """Send the control messages that are left, the error last, and close."""
        assert self.protocol.closing is not None
        self._outbox.drop_media()
        self._collect()
        async with asyncio.timeout(GOODBYE_S):
            while (message := self._outbox.take(self._now())) is not None:
                await self._socket.send(message)
            await self._socket.close(CLOSE_CODES[self.protocol.closing], self.protocol.closing)
