"""Everybody who watches one server's character, and who of them speaks.

Takes viewers that come, report and leave, and the streams of sessions. Gives each viewer what it
gets, by way of its outbox. Never reads a socket: `_connection` does. Everything here runs on the
event loop, between awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from talking_avatar import MediaInfo, Position
from talking_avatar_websocket._broadcast import Broadcast
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import (
    Features,
    Feedback,
    Floor,
    Flush,
    Flushed,
    Hello,
    Played,
    ServerMessage,
    Stats,
    StreamEnded,
    StreamInfo,
    Welcome,
    WelcomeLimits,
)
from talking_avatar_websocket._outbox import Outbox, Parcel
from talking_avatar_websocket._packets import AudioCodec, VideoCodec
from talking_avatar_websocket._positions import PlayedPositions
from talking_avatar_websocket._protocol import ClientEvent, ServerProtocol
from talking_avatar_websocket._rate import RateController, RateRange
from talking_avatar_websocket._video import codec_string

AnyCodec = TypeVar("AnyCodec", VideoCodec, AudioCodec)

BEHIND_S = 0.25
"""Video that waits longer than this says that its viewer is behind."""
BEHIND_DECODES = 8
"""More frames than this in front of a viewer's decoder say the same."""
_CAPACITY_RETRY_S = 10.0


@dataclass(eq=False)
class Viewer:
    """One client that was let in.

    Attributes:
        number: On this server.
        wake: Called when there is something to send.
        num_dropped: Frames that it had not got when it was last looked at.
        rtt_s: Of its connection; None while unknown.
    """

    number: int
    protocol: ServerProtocol
    outbox: Outbox
    video_codec: VideoCodec
    audio_codec: AudioCodec
    wake: Callable[[], None]
    feedback: Feedback = field(default_factory=Feedback)
    num_dropped: int = 0
    rtt_s: float | None = None

    def send(self, message: ServerMessage) -> None:
        """Queue a control message."""
        self.outbox.put_control(message.to_text())
        self.wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    """What a server makes, and what it takes.

    Attributes:
        video, audio: Codecs that a client may choose.
        features: What clients may ask for.
        rates: Of video.
    """

    video: tuple[VideoCodec, ...] = ("vp8", "h264", "jpeg")
    audio: tuple[AudioCodec, ...] = ("opus", "pcm")
    features: Features = field(default_factory=Features)
    rates: RateRange = field(default_factory=RateRange)

    def __post_init__(self) -> None:
        if not self.video or not self.audio:
            raise ValueError("a server offers at least one codec of picture and one of sound")


class Audience:
    """All viewers of one server.

    Args:
        offering: What they may get.
        limits: What they are held to.
        now: The clock: seconds that never go back.
        on_event: Told of what viewers ask for, beside what is answered here.
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
        self._speaker: Viewer | None = None
        self._last_number = 0
        self._last_stream = 0
        self._broadcast: Broadcast | None = None
        self._positions = PlayedPositions()
        self._rates: dict[VideoCodec, RateController] = {}
        self._last_flush = 0
        self._flush_waiters: dict[int, tuple[set[int], asyncio.Event]] = {}

    # -- viewers

    @property
    def viewers(self) -> tuple[Viewer, ...]:
        """Who is in, in the order of coming."""
        return tuple(self._viewers.values())

    @property
    def speaker(self) -> Viewer | None:
        """Who has the floor."""
        return self._speaker

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
        video = next((codec for codec in hello.video if codec in self._offering.video), None)
        audio = next((codec for codec in hello.audio if codec in self._offering.audio), None)
        if video is None or audio is None:
            protocol.refuse(
                "no_common_codec",
                f"this server makes {', '.join((*self._offering.video, *self._offering.audio))}",
            )
            return None
        self._last_number += 1
        viewer = Viewer(
            self._last_number,
            protocol,
            outbox,
            _named(video, self._offering.video),
            _named(audio, self._offering.audio),
            wake,
        )
        self._viewers[viewer.number] = viewer
        if hello.role == "speaker" and protocol.permission == "speak" and self._speaker is None:
            self._speaker = viewer
            protocol.has_floor = True
            self._tell_floor("changed", others_than=(viewer,))
        protocol.accept()
        viewer.send(self._welcome(viewer))
        if self._broadcast is not None:
            self._begin_for(viewer, self._broadcast)
        return viewer

    def _welcome(self, viewer: Viewer) -> Welcome:
        limits = self._limits
        return Welcome(
            version=1,
            viewer=viewer.number,
            has_floor=viewer is self._speaker,
            floor_taken=self._speaker is not None,
            may_speak=viewer.protocol.permission == "speak",
            server_us=int(self._now() * 1e6),
            features=self._offering.features,
            limits=WelcomeLimits(
                max_message_bytes=limits.max_message_bytes,
                max_text_chars=limits.max_text_chars,
                max_photo_bytes=limits.max_photo_bytes,
                max_input_s=limits.max_input_s,
                max_connection_s=limits.max_connection_s,
                heartbeat_s=limits.heartbeat_s,
            ),
        )

    def leave(self, viewer: Viewer) -> None:
        """A client has gone; its floor is free. Idempotent."""
        if self._viewers.pop(viewer.number, None) is None:
            return
        self._positions.leave(viewer.number)
        for waiting, event in self._flush_waiters.values():
            waiting.discard(viewer.number)
            if not waiting:
                event.set()
        if viewer is self._speaker:
            self._free_floor(viewer)
            self._tell_floor("changed")

    def send(self, message: ServerMessage) -> None:
        """Send a control message to everybody."""
        text = message.to_text()
        for viewer in self._viewers.values():
            viewer.outbox.put_control(text)
            viewer.wake()

    # -- the floor

    def request_floor(self, viewer: Viewer, *, take_over: bool) -> None:
        """Make a viewer the speaker if it may be."""
        if viewer.protocol.permission != "speak":
            viewer.send(self._floor_of(viewer, "not_allowed"))
            return
        before = self._speaker
        if before is not None and before is not viewer:
            if not take_over:
                viewer.send(self._floor_of(viewer, "refused"))
                return
            self._free_floor(before)
        self._speaker = viewer
        viewer.protocol.has_floor = True
        viewer.send(self._floor_of(viewer, "granted"))
        if before is not None and before is not viewer:
            before.send(self._floor_of(before, "taken_over"))
            self._tell_floor("changed", others_than=(viewer, before))
        elif before is None:
            self._tell_floor("changed", others_than=(viewer,))

    def release_floor(self, viewer: Viewer) -> None:
        """Free the floor if that viewer has it."""
        if viewer is self._speaker:
            self._free_floor(viewer)
            viewer.send(self._floor_of(viewer, "released"))
            self._tell_floor("changed", others_than=(viewer,))

    def _free_floor(self, viewer: Viewer) -> None:
        self._speaker = None
        for event in viewer.protocol.lose_floor():
            self._on_event(viewer, event)

    def _floor_of(self, viewer: Viewer, reason: str) -> Floor:
        return Floor.model_validate(
            {
                "has_floor": viewer is self._speaker,
                "floor_taken": self._speaker is not None,
                "reason": reason,
            }
        )

    def _tell_floor(self, reason: str, *, others_than: Iterable[Viewer] = ()) -> None:
        skipped = set(map(id, others_than))
        for viewer in self._viewers.values():
            if id(viewer) not in skipped:
                viewer.send(self._floor_of(viewer, reason))

    # -- streams

    def begin_stream(self, media: MediaInfo) -> Broadcast:
        """Begin a stream; the one before, if there is one, gets nowhere any more."""
        self._last_stream += 1
        kbps = self._offering.rates.max_kbps
        broadcast = Broadcast(self._last_stream, media, self._limits, kbps, self._deliver)
        self._broadcast = broadcast
        self._positions = PlayedPositions()
        self._rates = {}
        for viewer in self._viewers.values():
            self._begin_for(viewer, broadcast)
        return broadcast

    def end_stream(self, broadcast: Broadcast) -> None:
        """End a stream, if it is still the one that is shown."""
        if broadcast is self._broadcast:
            self._broadcast = None
            self.send(StreamEnded(stream=broadcast.number))

    def is_shown(self, broadcast: Broadcast) -> bool:
        """Whether viewers get this stream."""
        return broadcast is self._broadcast

    def _begin_for(self, viewer: Viewer, broadcast: Broadcast) -> None:
        media = broadcast.media
        viewer.outbox.drop_media()
        self._positions.join(viewer.number)
        viewer.send(
            StreamInfo(
                stream=broadcast.number,
                width=media.width,
                height=media.height,
                fps=media.fps,
                video_codec=viewer.video_codec,
                video_codec_string=codec_string(viewer.video_codec, media),
                audio_codec=viewer.audio_codec,
                sample_rate=media.sample_rate,
                pts_us=int(self._positions.sent_s * 1e6),
            )
        )
        self._ask_key(viewer, broadcast)

    def wanted(self) -> tuple[list[VideoCodec], list[AudioCodec]]:
        """Give the codecs that somebody takes."""
        video = {viewer.video_codec: None for viewer in self._viewers.values()}
        audio = {viewer.audio_codec: None for viewer in self._viewers.values()}
        return list(video), list(audio)

    def note_sent(self, end_s: float) -> None:
        """The shown stream was offered up to ``end_s``."""
        self._positions.note_sent(end_s, self._now())

    def _deliver(self, codec: VideoCodec | AudioCodec, parcel: Parcel) -> None:
        now = self._now()
        for viewer in self._viewers.values():
            if codec == (viewer.video_codec if parcel.is_video else viewer.audio_codec):
                viewer.outbox.put(parcel, now)
                viewer.wake()

    def _ask_key(self, viewer: Viewer, broadcast: Broadcast) -> None:
        if viewer.outbox.wants_key(self._now()):
            broadcast.request_key(viewer.video_codec)

    def ask_key(self, viewer: Viewer, *, is_lost: bool = False) -> None:
        """Make a key frame for a viewer that needs one and has room for it.

        Args:
            viewer: Who needs it.
            is_lost: Its decoder says so; the rates of the protocol bound how often.
        """
        broadcast = self._broadcast
        if broadcast is None:
            return
        if is_lost:
            broadcast.request_key(viewer.video_codec)
        else:
            self._ask_key(viewer, broadcast)

    # -- positions

    def report(self, viewer: Viewer, message: Played | Flushed) -> None:
        """A viewer says how far it has played."""
        if self._broadcast is not None and message.stream == self._broadcast.number:
            self._positions.report(viewer.number, message.pts_us / 1e6, self._now())
        if isinstance(message, Flushed) and message.flush_id in self._flush_waiters:
            waiting, event = self._flush_waiters[message.flush_id]
            waiting.discard(viewer.number)
            if not waiting:
                event.set()

    def position(self) -> Position | None:
        """Give how far the shown stream was heard; None while nobody gets it."""
        speaker = None if self._speaker is None else self._speaker.number
        return self._positions.position(self._now(), speaker)

    async def flush(self, broadcast: Broadcast) -> None:
        """Have everybody forget sound that was not yet heard; wait for the speaker's word.

        Without a speaker, everybody's is waited for. Returns after the limit's time at the latest.
        """
        broadcast.flush_sound()
        self._last_flush += 1
        flush_id = self._last_flush
        for viewer in self._viewers.values():
            viewer.outbox.drop_sound()
        self.send(Flush(flush_id=flush_id, stream=broadcast.number))
        waiting = set(self._viewers) if self._speaker is None else {self._speaker.number}
        if not waiting:
            return
        event = asyncio.Event()
        self._flush_waiters[flush_id] = (waiting, event)
        try:
            async with asyncio.timeout(self._limits.flush_timeout_s):
                await event.wait()
        except TimeoutError:
            pass  # the position is then an estimate, and says so
        finally:
            del self._flush_waiters[flush_id]

    # -- once a second

    def tick(self) -> None:
        """Look at how well everybody follows; set the encoders' rates by it."""
        broadcast = self._broadcast
        now = self._now()
        behind = {viewer: self._is_behind(viewer, now) for viewer in self._viewers.values()}
        if broadcast is None:
            return
        for codec in self._offering.video:
            served = [viewer for viewer in behind if viewer.video_codec == codec]
            if codec == "jpeg" or not served:
                continue
            rate = self._rates.get(codec)
            if rate is None:
                rate = self._rates[codec] = RateController(self._offering.rates, now)
            num_behind = sum(behind[viewer] for viewer in served)
            kbps = rate.update(num_viewers=len(served), num_behind=num_behind, now=now)
            broadcast.set_kbps(codec, kbps)

    def _is_behind(self, viewer: Viewer, now: float) -> bool:
        dropped = viewer.outbox.num_dropped_video
        num_dropped, viewer.num_dropped = dropped - viewer.num_dropped, dropped
        return (
            num_dropped > 0
            or viewer.outbox.video_lag_s(now) > BEHIND_S
            or (viewer.feedback.decode_queue or 0) > BEHIND_DECODES
        )

    def send_stats(self, stats: Stats) -> None:
        """Send everybody the session's figures beside its own."""
        now = self._now()
        for viewer in self._viewers.values():
            viewer.outbox.put_stats(self._stats_of(viewer, stats, now).to_text())
            viewer.wake()

    def _stats_of(self, viewer: Viewer, stats: Stats, now: float) -> Stats:
        rate = self._rates.get(viewer.video_codec)
        broadcast = self._broadcast
        encode_ms = None if broadcast is None else broadcast.encode_ms(viewer.video_codec)
        return stats.model_copy(
            update={
                "encode_ms": None if encode_ms is None else round(encode_ms, 2),
                "video_kbps": None if rate is None else rate.kbps,
                "num_dropped": viewer.outbox.num_dropped_video,
                "queued_ms": round(viewer.outbox.video_lag_s(now) * 1e3, 1),
                "rtt_ms": None if viewer.rtt_s is None else round(viewer.rtt_s * 1e3, 1),
                "num_viewers": len(self._viewers),
            }
        )


def _named(wanted: str, offered: tuple[AnyCodec, ...]) -> AnyCodec:
    """Give the offered codec of that name, as its own type."""
    return offered[offered.index(wanted)]
