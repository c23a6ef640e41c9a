"""One stream, shown to the viewers of a server.

Takes a session's frames, and what viewers say of them. Gives each viewer its packets, and how far
the stream was heard. Sets the encoders' rates. Ends when another stream is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from talking_avatar import Frame, MediaInfo, Position
from talking_avatar_websocket._broadcast import Broadcast
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import Flush, Flushed, Played, Stats, StreamInfo
from talking_avatar_websocket._outbox import Parcel
from talking_avatar_websocket._packets import AudioCodec, VideoCodec
from talking_avatar_websocket._positions import PlayedPositions
from talking_avatar_websocket._rate import RateController, RateRange
from talking_avatar_websocket._video import codec_string
from talking_avatar_websocket._viewer import Viewer


class Showing:
    """One stream and those who see it.

    Args:
        number: Of the stream.
        media: What its frames are.
        viewers: Who is in, by number; changes while the stream runs.
        rates: Of video.
        limits: What viewers are held to.
        now: The clock.

    Attributes:
        is_current: False once another stream is shown, or this one is over.
    """

    def __init__(
        self,
        number: int,
        media: MediaInfo,
        viewers: Mapping[int, Viewer],
        *,
        rates: RateRange,
        limits: Limits,
        now: Callable[[], float],
    ) -> None:
        self.number = number
        self.media = media
        self.is_current = True
        self._viewers = viewers
        self._rate_range = rates
        self._limits = limits
        self._now = now
        self._broadcast = Broadcast(number, media, limits, rates.max_kbps, self._deliver)
        self._positions = PlayedPositions()
        self._rates: dict[VideoCodec, RateController] = {}
        self._last_flush = 0
        self._unflushed: set[int] = set()  # who has not yet acknowledged the last flush
        self._flushed = asyncio.Event()

    # -- viewers

    def join(self, viewer: Viewer) -> None:
        """A viewer sees the stream from now on."""
        media = self.media
        viewer.outbox.drop_media()
        self._positions.join(viewer.number)
        viewer.send(
            StreamInfo(
                stream=self.number,
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
        self.serve_key(viewer)

    def leave(self, viewer: Viewer) -> None:
        """A viewer has gone."""
        self._positions.leave(viewer.number)
        self._note_flushed(viewer)

    def report(self, viewer: Viewer, message: Played | Flushed) -> None:
        """A viewer says how far it has played."""
        if message.stream == self.number:
            self._positions.report(viewer.number, message.pts_us / 1e6, self._now())
            if isinstance(message, Flushed) and message.flush_id == self._last_flush:
                self._note_flushed(viewer)

    def serve_key(self, viewer: Viewer, *, is_lost: bool = False) -> None:
        """Make a key frame for a viewer that needs one and has room for it.

        Args:
            viewer: Who needs it.
            is_lost: Its decoder says so; the rates of the protocol bound how often.
        """
        if is_lost or viewer.outbox.wants_key(self._now()):
            self._broadcast.request_key(viewer.video_codec)

    # -- media

    @property
    def error(self) -> BaseException | None:
        """What an encoder died of."""
        return self._broadcast.error

    async def offer(self, frame: Frame) -> None:
        """Encode a frame for those who watch; a live stream does not wait for it."""
        video = dict.fromkeys(viewer.video_codec for viewer in self._viewers.values())
        audio = dict.fromkeys(viewer.audio_codec for viewer in self._viewers.values())
        jobs = self._broadcast.offer(frame, video, audio)
        self._positions.note_sent((frame.index + 1) / self.media.fps, self._now())
        if self.media.clock == "unpaced" and jobs:
            await asyncio.wait(jobs)

    def _deliver(self, codec: VideoCodec | AudioCodec, parcel: Parcel) -> None:
        if not self.is_current:
            return
        now = self._now()
        for viewer in self._viewers.values():
            if codec == (viewer.video_codec if parcel.is_video else viewer.audio_codec):
                viewer.outbox.put(parcel, now)
                viewer.wake()

    # -- positions

    def position(self, speaker: Viewer | None) -> Position | None:
        """Give how far the stream was heard; None while nobody sees it."""
        number = None if speaker is None else speaker.number
        return self._positions.position(self._now(), number)

    async def flush(self, flush_id: int, speaker: Viewer | None) -> None:
        """Have everybody forget sound that was not yet heard; wait for the speaker's word.

        Without a speaker, everybody's is waited for. Returns after the limit's time at the latest:
        the position is then an estimate, and says so.
        """
        self._broadcast.flush_sound()
        message = Flush(flush_id=flush_id, stream=self.number)
        for viewer in self._viewers.values():
            viewer.outbox.drop_sound()
            viewer.send(message)
        self._last_flush, self._flushed = flush_id, asyncio.Event()
        self._unflushed = set(self._viewers) if speaker is None else {speaker.number}
        if not self._unflushed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.flush_timeout_s):
                await self._flushed.wait()

    def _note_flushed(self, viewer: Viewer) -> None:
        self._unflushed.discard(viewer.number)
        if not self._unflushed:
            self._flushed.set()

    # -- once a second

    def tick(self) -> None:
        """Set the encoders' rates by how well their viewers follow."""
        now = self._now()
        behind: dict[VideoCodec, list[bool]] = {}
        for viewer in self._viewers.values():
            behind.setdefault(viewer.video_codec, []).append(viewer.look_behind(now))
        for codec, are_behind in behind.items():
            if codec == "jpeg":
                continue  # it has no rate
            rate = self._rates.get(codec)
            if rate is None:
                rate = self._rates[codec] = RateController(self._rate_range, now)
            kbps = rate.update(num_viewers=len(are_behind), num_behind=sum(are_behind), now=now)
            self._broadcast.set_kbps(codec, kbps)

    def send_stats(self, stats: Stats) -> None:
        """Send everybody the session's figures beside its own."""
        now = self._now()
        for viewer in self._viewers.values():
            rate = self._rates.get(viewer.video_codec)
            own = {
                "encode_ms": _rounded(self._broadcast.encode_ms(viewer.video_codec)),
                "video_kbps": None if rate is None else rate.kbps,
                "num_dropped": viewer.outbox.num_dropped_video,
                "queued_ms": _rounded(viewer.outbox.video_lag_s(now) * 1e3),
                "rtt_ms": None if viewer.rtt_s is None else _rounded(viewer.rtt_s * 1e3),
                "num_viewers": len(self._viewers),
            }
            viewer.outbox.put_stats(stats.model_copy(update=own).to_text())
            viewer.wake()

    async def aclose(self) -> None:
        """Release the encoders. Idempotent."""
        self.is_current = False
        self._flushed.set()
        await self._broadcast.aclose()


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
