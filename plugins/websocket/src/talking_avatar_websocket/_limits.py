"""Every bound of the plugin in one frozen value, and the buckets that hold a client to its rates.

Never reads a clock: whoever asks says what time it is.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

RateGroup: TypeAlias = Literal[
    "any", "control", "text", "floor", "feedback", "audio", "photo", "key_frame", "bad", "dropped"
]


class Rate(BaseModel):
    """A token bucket.

    Attributes:
        per_s: Messages a second that it lets through in the long run.
        burst: Messages that may come at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_s: float = Field(gt=0)
    burst: int = Field(ge=1)


DEFAULT_RATES: dict[RateGroup, Rate] = {
    # Before anything is parsed. Most is sound: 100 packets a second of 10 ms, and a burst of them
    # after a hiccup of the network.
    "any": Rate(per_s=400, burst=800),
    "control": Rate(per_s=10, burst=40),
    "text": Rate(per_s=1, burst=5),
    "floor": Rate(per_s=1, burst=5),
    "feedback": Rate(per_s=40, burst=80),
    "audio": Rate(per_s=125, burst=250),
    # 12 MiB in pieces of 60 KiB are 205 messages.
    "photo": Rate(per_s=50, burst=256),
    "key_frame": Rate(per_s=1, burst=3),
    # Messages that make no sense: more, and the connection is closed.
    "bad": Rate(per_s=0.5, burst=20),
    # Messages beyond any rate above: more, and the connection is closed.
    "dropped": Rate(per_s=20, burst=400),
}
"""What one client may send, by kind of message; see the table in docs/websocket-protocol.md."""


class Limits(BaseModel):
    """What a server holds its clients, and itself, to.

    Attributes:
        max_connections: Open sockets, those that have not yet said hello included.
        max_waiting: Connections that have not yet said hello; one more closes the oldest of them,
            so that half-open ones keep nobody out.
        max_viewers: Clients that were let in; the next one is told to come back later.
        open_timeout_s: From the TCP connection to the end of the HTTP request.
        hello_timeout_s: From there to a valid hello.
        heartbeat_s: Silence after which a client is pinged; twice that without an answer ends
            the connection.
        max_message_bytes: Of one message from a client.
        max_text_chars: Of one text to be spoken.
        max_texts: Texts that wait to be spoken.
        max_photo_bytes: Of an uploaded image file.
        photo_timeout_s: From the begin of an upload to its last piece.
        max_input_s: Of microphone sound between one start and its stop; a `limit` message comes
            ten seconds before.
        max_connection_s: Of one connection; None: no end. `limit` messages come a minute and ten
            seconds before.
        max_video_lag_s: Video that waits longer than this for a slow client is dropped, to the
            newest key frame.
        max_audio_lag_s: Sound that waits longer than this is dropped, oldest first.
        max_queue_bytes: Media that waits for one client, picture and sound together.
        max_queued_controls: Control messages that wait for one client; one more ends it.
        stuck_s: A client that takes nothing at all for this long is closed.
        flush_timeout_s: How long an interruption waits for acknowledgements.
        min_key_interval_s: Between two key frames that clients asked for.
        rates: What one client may send.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: int = Field(512, ge=1)
    max_waiting: int = Field(64, ge=1)
    max_viewers: int = Field(32, ge=1)
    open_timeout_s: float = Field(5.0, gt=0)
    hello_timeout_s: float = Field(5.0, gt=0)
    heartbeat_s: float = Field(10.0, gt=0)
    max_message_bytes: int = Field(64 * 1024, ge=4 * 1024)
    max_text_chars: int = Field(1_000, ge=1)
    max_texts: int = Field(4, ge=1)
    max_photo_bytes: int = Field(12 * 1024 * 1024, ge=1024)
    photo_timeout_s: float = Field(60.0, gt=0)
    max_input_s: float = Field(120.0, gt=0)
    max_connection_s: float | None = Field(None, gt=0)
    max_video_lag_s: float = Field(0.5, gt=0)
    max_audio_lag_s: float = Field(2.0, gt=0)
    max_queue_bytes: int = Field(1024 * 1024, ge=64 * 1024)
    max_queued_controls: int = Field(64, ge=8)
    stuck_s: float = Field(15.0, gt=0)
    flush_timeout_s: float = Field(0.2, gt=0)
    min_key_interval_s: float = Field(1.0, gt=0)
    rates: dict[RateGroup, Rate] = Field(default_factory=lambda: dict(DEFAULT_RATES))


class Buckets:
    """One token bucket for each group of messages of one client.

    Args:
        rates: By group; a group without a rate is not limited.
    """

    def __init__(self, rates: dict[RateGroup, Rate]) -> None:
        self._rates = rates
        self._tokens: dict[RateGroup, tuple[float, float]] = {}  # what is left, and when

    def take(self, group: RateGroup, now: float) -> bool:
        """Spend one message; False if there is none left."""
        rate = self._rates.get(group)
        if rate is None:
            return True
        left, since = self._tokens.get(group, (float(rate.burst), now))
        left = min(float(rate.burst), left + (now - since) * rate.per_s)
        is_allowed = left >= 1
        self._tokens[group] = (left - 1 if is_allowed else left, now)
        return is_allowed
