"""Everybody who watches one server's character, and who of them speaks.

Takes viewers that come, ask for the floor and leave, and the streams of sessions. Never reads a
socket: `_connection` does. Everything here runs on the event loop, between awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from talking_avatar import MediaInfo
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import (
    VERSION,
    Floor,
    FloorReason,
    Hello,
    ServerMessage,
    StreamEnded,
    Welcome,
    WelcomeLimits,
)
from talking_avatar_websocket._outbox import Outbox
from talking_avatar_websocket._packets import AudioCodec, VideoCodec
from talking_avatar_websocket._protocol import ClientEvent, ServerProtocol
from talking_avatar_websocket._showing import Showing
from talking_avatar_websocket._viewer import Offering, Viewer

_CAPACITY_RETRY_S = 10.0

Codec = TypeVar("Codec", VideoCodec, AudioCodec)


class Audience:
    """All viewers of one server.

    Args:
        offering: What they may get.
        limits: What they are held to.
        now: The clock: seconds that never go back.
        on_event: Told of what a speaker's end brings about: its microphone's end.

    Attributes:
        speaker: Who has the floor.
        showing: The stream that is shown; None before the first and after the last.
    """

    def __init__(
        self,
        offering: Offering,
        limits: Limits,
        *,
        now: Callable[[], float],
        on_event: Callable[[Viewer, ClientEvent], None],
    ) -> None:
        self._offering = offering
        self._limits = limits
        self._now = now
        self._on_event = on_event
        self._viewers: dict[int, Viewer] = {}
        self._last_number = 0
        self._last_stream = 0
        self._last_flush = 0
        self.speaker: Viewer | None = None
        self.showing: Showing | None = None

    @property
    def viewers(self) -> tuple[Viewer, ...]:
        """Who is in, in the order of coming."""
        return tuple(self._viewers.values())

    def find(self, number: int) -> Viewer | None:
        """Give a viewer by its number if it is still in."""
        return self._viewers.get(number)

    def send(self, message: ServerMessage) -> None:
        """Send a control message to everybody."""
        for viewer in self._viewers.values():
            viewer.send(message)

    # -- coming and going

    def join(
        self, protocol: ServerProtocol, hello: Hello, outbox: Outbox, wake: Callable[[], None]
    ) -> Viewer | None:
        """Let a client in, or refuse it."""
        if len(self._viewers) >= self._limits.max_viewers:
            protocol.refuse(
                "capacity",
                f"{self._limits.max_viewers} viewers are here, and no more may come",
                retry_after_s=_CAPACITY_RETRY_S,
            )
            return None
        video = _first_of(self._offering.video, hello.video)
        audio = _first_of(self._offering.audio, hello.audio)
        if video is None or audio is None:
            made = ", ".join((*self._offering.video, *self._offering.audio))
            protocol.refuse("no_common_codec", f"this server makes {made}")
            return None
        self._last_number += 1
        viewer = Viewer(self._last_number, protocol, outbox, video, audio, wake)
        self._viewers[viewer.number] = viewer
        protocol.accept()
        is_free = self.speaker is None and hello.role == "speaker"
        if is_free and protocol.permission == "speak":
            self._give_floor(viewer)
            self._tell_floor("changed", except_for=(viewer,))
        viewer.send(self._welcome(viewer))
        if self.showing is not None:
            self.showing.join(viewer)
        return viewer

    def _welcome(self, viewer: Viewer) -> Welcome:
        return Welcome(
            version=VERSION,
            viewer=viewer.number,
            has_floor=viewer is self.speaker,
            floor_taken=self.speaker is not None,
            may_speak=viewer.protocol.permission == "speak",
            server_us=int(self._now() * 1e6),
            features=self._offering.features,
            limits=WelcomeLimits.model_validate(
                {name: getattr(self._limits, name) for name in WelcomeLimits.model_fields}
            ),
        )

    def leave(self, viewer: Viewer) -> None:
        """A client has gone; its floor is free. Idempotent."""
        if self._viewers.pop(viewer.number, None) is None:
            return
        if self.showing is not None:
            self.showing.leave(viewer)
        if viewer is self.speaker:
            self._take_floor()
            self._tell_floor("changed")

    # -- the floor

    def request_floor(self, viewer: Viewer, *, take_over: bool) -> None:
        """Make a viewer the speaker, if it may be."""
        before = self.speaker
        if viewer.protocol.permission != "speak":
            viewer.send(self._floor_for(viewer, "not_allowed"))
        elif before is not None and before is not viewer and not take_over:
            viewer.send(self._floor_for(viewer, "refused"))
        elif before is viewer:
            viewer.send(self._floor_for(viewer, "granted"))
        else:
            self._take_floor()
            self._give_floor(viewer)
            viewer.send(self._floor_for(viewer, "granted"))
            if before is not None:
                before.send(self._floor_for(before, "taken_over"))
            self._tell_floor("changed", except_for=(viewer, before))

    def release_floor(self, viewer: Viewer) -> None:
        """Free the floor, if that viewer has it."""
        if viewer is self.speaker:
            self._take_floor()
            viewer.send(self._floor_for(viewer, "released"))
            self._tell_floor("changed", except_for=(viewer,))

    def _give_floor(self, viewer: Viewer) -> None:
        self.speaker = viewer
        viewer.protocol.has_floor = True

    def _take_floor(self) -> None:
        speaker, self.speaker = self.speaker, None
        if speaker is not None:
            for event in speaker.protocol.lose_floor():
                self._on_event(speaker, event)

    def _floor_for(self, viewer: Viewer, reason: FloorReason) -> Floor:
        return Floor(
            has_floor=viewer is self.speaker, floor_taken=self.speaker is not None, reason=reason
        )

    def _tell_floor(
        self, reason: FloorReason, *, except_for: Collection[Viewer | None] = ()
    ) -> None:
        for viewer in self._viewers.values():
            if viewer not in except_for:
                viewer.send(self._floor_for(viewer, reason))

    # -- streams

    def begin_stream(self, media: MediaInfo) -> Showing:
        """Show a stream; the one before gets nowhere any more."""
        if self.showing is not None:
            self.showing.is_current = False
        self._last_stream += 1
        self.showing = Showing(
            self._last_stream,
            media,
            self._viewers,
            rates=self._offering.rates,
            limits=self._limits,
            now=self._now,
        )
        for viewer in self._viewers.values():
            self.showing.join(viewer)
        return self.showing

    def end_stream(self, showing: Showing) -> None:
        """Show nothing, if it is still this stream that is shown."""
        if showing is self.showing:
            showing.is_current = False
            self.showing = None
            self.send(StreamEnded(stream=showing.number))

    def next_flush(self) -> int:
        """Give a number for a flush."""
        self._last_flush += 1
        return self._last_flush

    def tick(self) -> None:
        """Once a second: look at how well everybody follows."""
        if self.showing is not None:
            self.showing.tick()


def _first_of(offered: Sequence[Codec], wanted: Sequence[str]) -> Codec | None:
    """Give the first codec of a client's list that is offered."""
    for name in wanted:
        for codec in offered:
            if codec == name:
                return codec
    return None
