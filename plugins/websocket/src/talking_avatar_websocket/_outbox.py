"""What waits to be sent to one viewer: bounded in bytes and in time.

Takes control messages and media packets as they are made. Gives the next one to send: control
first, then sound, then picture. Never awaits, never encodes, never lets a slow viewer hold more
than its share.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from talking_avatar_websocket._limits import Limits

_MAX_KEY_BACKOFF = 8
"""A viewer that is always behind asks for a key frame less and less often: each costs all others
bits. Eight times the shortest interval is the most."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One media packet, as bytes that all viewers share.

    Attributes:
        data: The message.
        is_video: Picture, else sound.
        is_key: Decodable without what came before.
    """

    data: bytes
    is_video: bool
    is_key: bool


class Outbox:
    """One viewer's queue.

    Args:
        limits: What it may hold, and for how long.

    Attributes:
        num_dropped_video, num_dropped_sound: Packets that the viewer did not get.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._controls: deque[str] = deque()
        self._stats: str | None = None
        self._sound: deque[tuple[float, Parcel]] = deque()
        self._video: deque[tuple[float, Parcel]] = deque()
        self._num_bytes = 0
        self._awaits_key = True
        self._asked_at: float | None = None
        self._backoff = 1
        self.num_dropped_video = 0
        self.num_dropped_sound = 0

    @property
    def num_bytes(self) -> int:
        """Of media that waits."""
        return self._num_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether more control messages wait than a live client lets wait."""
        return len(self._controls) > self._limits.max_queued_controls

    def video_lag_s(self, now: float) -> float:
        """For how long the oldest picture has been waiting."""
        return now - self._video[0][0] if self._video else 0.0

    def put_control(self, text: str) -> None:
        """Add a control message; none is ever dropped: see `is_overfull`."""
        self._controls.append(text)

    def put_stats(self, text: str) -> None:
        """Add a message of which only the newest matters."""
        self._stats = text

    def put(self, parcel: Parcel, now: float) -> None:
        """Add media; older media gives way where there is too much."""
        if parcel.is_video:
            self._put_video(parcel, now)
        else:
            self._sound.append((now, parcel))
            self._num_bytes += len(parcel.data)
        self._drop_old(now)

    def _put_video(self, parcel: Parcel, now: float) -> None:
        if self._awaits_key and not parcel.is_key:
            self.num_dropped_video += 1
            return
        self._awaits_key = False
        self._video.append((now, parcel))
        self._num_bytes += len(parcel.data)

    def _drop_old(self, now: float) -> None:
        too_many = self._num_bytes > self._limits.max_queue_bytes
        if self._video and (too_many or self.video_lag_s(now) > self._limits.max_video_lag_s):
            self._drop_video(now)
        while self._sound and (
            now - self._sound[0][0] > self._limits.max_audio_lag_s
            or self._num_bytes > self._limits.max_queue_bytes
        ):
            self._num_bytes -= len(self._sound.popleft()[1].data)
            self.num_dropped_sound += 1

    def _drop_video(self, now: float) -> None:
        """Drop to the newest key frame that is fresh, or all of it."""
        newest_key = max(
            (
                at
                for at, (since, parcel) in enumerate(self._video)
                if at and parcel.is_key and now - since <= self._limits.max_video_lag_s
            ),
            default=len(self._video),
        )
        for _ in range(newest_key):
            self._num_bytes -= len(self._video.popleft()[1].data)
            self.num_dropped_video += 1
        self._awaits_key = not self._video

    def drop_sound(self) -> None:
        """Drop all sound that waits: it belongs to a turn that was cut."""
        self._num_bytes -= sum(len(parcel.data) for _, parcel in self._sound)
        self._sound.clear()

    def drop_media(self) -> None:
        """Drop all media: its stream is over. Video goes on with a key frame."""
        self._sound.clear()
        self._video.clear()
        self._num_bytes = 0
        self._awaits_key, self._asked_at, self._backoff = True, None, 1

    def take(self, now: float) -> str | bytes | None:
        """Give the next message to send; None if there is none."""
        self._drop_old(now)
        if self._controls:
            return self._controls.popleft()
        if self._sound:
            return self._sent(self._sound)
        if self._video:
            return self._sent(self._video)
        stats, self._stats = self._stats, None
        return stats

    def _sent(self, queue: deque[tuple[float, Parcel]]) -> bytes:
        _, parcel = queue.popleft()
        self._num_bytes -= len(parcel.data)
        return parcel.data

    def wants_key(self, now: float) -> bool:
        """Whether a key frame should be made for this viewer; asking counts.

        Only for one that has nothing left to send: a viewer that is stuck asks for none, and one
        that always falls behind asks less and less often.
        """
        if not self._awaits_key or self._sound or self._controls:
            return False
        if self._asked_at is not None:
            wait_s = self._limits.min_key_interval_s * self._backoff
            if now - self._asked_at < wait_s:
                return False
            is_recent = now - self._asked_at < 2 * wait_s
            self._backoff = min(_MAX_KEY_BACKOFF, 2 * self._backoff) if is_recent else 1
        self._asked_at = now
        return True
