"""One client that was let in, and what a server offers to all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from talking_avatar_websocket._messages import Features, Feedback, ServerMessage
from talking_avatar_websocket._outbox import Outbox
from talking_avatar_websocket._packets import AudioCodec, VideoCodec
from talking_avatar_websocket._protocol import ServerProtocol
from talking_avatar_websocket._rate import RateRange

_BEHIND_S = 0.25
"""Video that waits longer than this says that its viewer is behind."""
_BEHIND_DECODES = 8
"""More frames than this in front of a viewer's decoder say the same."""


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


@dataclass(eq=False, slots=True)
class Viewer:
    """One client that was let in.

    Attributes:
        number: On this server.
        protocol, outbox: Of its connection.
        video_codec, audio_codec: That were agreed on.
        wake: Called when there is something to send.
        feedback: What it said last of itself.
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

    def look_behind(self, now: float) -> bool:
        """Whether it could not take all of the time since the last look."""
        dropped = self.outbox.num_dropped_video
        num_dropped, self.num_dropped = dropped - self.num_dropped, dropped
        return (
            num_dropped > 0
            or self.outbox.video_lag_s(now) > _BEHIND_S
            or (self.feedback.decode_queue or 0) > _BEHIND_DECODES
        )
