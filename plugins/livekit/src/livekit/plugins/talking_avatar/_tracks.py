"""A session's frames as two tracks of a room.

Takes the frames of a live session. Gives them to LiveKit: the sound into the queue of an audio
source, the picture when its sound is heard. Knows how far the sound was played out.
Never decides what is said.

It paces by the session's deadlines and the depth of one queue, where LiveKit's `AVSynchronizer`
goes by the room in two: that one has no time stamps, and after a stall of 200 ms it leaves the
sound 95 ms behind the picture for good (livekit 1.1.21).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from livekit.rtc.participant import UnpublishTrackError

from livekit import rtc
from talking_avatar import Frame, MediaInfo, Position, Transport

from ._playout import PlayoutClock

QUEUE_MS = 200
"""Room for the lead and two frames. Any number that is no multiple of 10 aborts the process inside
the native library."""
assert QUEUE_MS % 10 == 0
VIDEO_BITS_PER_S = 2_500_000
"""At most: a talking head at 704x1088 is clean at 1.5 Mbit/s; a gesture takes more."""


class RoomTransport(Transport):
    """Publishes ``avatar_audio`` and ``avatar_video`` as soon as the room is connected.

    Args:
        room: Connected or not; never closed here.
        on_turn_heard: Called with a turn's id when its first sample is heard.
    """

    def __init__(self, room: rtc.Room, on_turn_heard: Callable[[int], None]) -> None:
        self._room = room
        self._on_turn_heard = on_turn_heard
        self._clock = PlayoutClock()
        self._now = time.monotonic
        self._last_turn: int | None = None
        self._pending: set[asyncio.TimerHandle] = set()
        self._audio: rtc.AudioSource | None = None
        self._video: rtc.VideoSource | None = None
        self._publications: list[rtc.LocalTrackPublication] = []
        self._publishing: asyncio.Task[None] | None = None
        self._size = (0, 0)
        self._is_closed = False

    @property
    def num_pending(self) -> int:
        """Pictures that wait for their sound to be heard."""
        return len(self._pending)

    async def open(self, media: MediaInfo) -> None:
        if media.pixel_format != "i420" or media.clock != "live":
            raise ValueError(
                f"a room takes I420 in real time, not {media.pixel_format}, {media.clock}: "
                "AvatarSession(..., pixel_format='i420', clock='live')"
            )
        self._size = (media.width, media.height)
        self._now = asyncio.get_running_loop().time
        self._audio = rtc.AudioSource(media.sample_rate, 1, queue_size_ms=QUEUE_MS)
        self._video = rtc.VideoSource(*self._size)
        self._publishing = asyncio.create_task(self._publish(media), name="talking_avatar.publish")
        self._publishing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def wait_until_published(self) -> None:
        """Wait for the room to be connected and both tracks to be there.

        Raises:
            livekit.rtc.PublishTrackError: The room refused a track.
        """
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    async def _publish(self, media: MediaInfo) -> None:
        await _connected(self._room)
        assert self._audio is not None
        assert self._video is not None
        audio = rtc.LocalAudioTrack.create_audio_track("avatar_audio", self._audio)
        video = rtc.LocalVideoTrack.create_video_track("avatar_video", self._video)
        for track, source in (
            (audio, rtc.TrackSource.SOURCE_MICROPHONE),
            (video, rtc.TrackSource.SOURCE_CAMERA),
        ):
            options = rtc.TrackPublishOptions(
                source=source,
                simulcast=False,  # a second and third encoding of one face cost more than they give
                video_encoding=rtc.VideoEncoding(
                    max_bitrate=VIDEO_BITS_PER_S, max_framerate=media.fps
                ),
            )
            publication = await self._room.local_participant.publish_track(track, options)
            self._publications.append(publication)

    async def send(self, frame: Frame) -> None:
        assert self._audio is not None
        now = self._now()
        handing = self._clock.hand_over(frame, now)
        self._at(handing.heard_at, self._show, frame)
        if frame.speaking and frame.turn_id != self._last_turn:
            self._last_turn = frame.turn_id
            self._at(handing.heard_at, self._on_turn_heard, frame.turn_id)
        sound = bytes(2 * handing.num_silent) + frame.audio[handing.num_left_out :].tobytes()
        if sound:
            await self._audio.capture_frame(
                rtc.AudioFrame(sound, self._audio.sample_rate, 1, len(sound) // 2)
            )

    def _at(self, when: float, call: Callable[..., None], *args: object) -> None:
        """Call later; what is left at the end is dropped. At most the queue's depth: few."""

        def run() -> None:
            self._pending.discard(handle)
            call(*args)

        handle = asyncio.get_running_loop().call_at(when, run)
        self._pending.add(handle)

    def _show(self, frame: Frame) -> None:
        if self._video is not None:
            picture = rtc.VideoFrame(*self._size, rtc.VideoBufferType.I420, frame.image.tobytes())
            self._video.capture_frame(picture)

    def clear(self) -> None:
        """Drop the sound that was handed over and is not yet heard; at once."""
        self._clock.clear(self._now())
        if self._audio is not None:
            self._audio.clear_queue()

    async def interrupt(self) -> None:
        self.clear()

    def played_position(self) -> Position | None:
        return Position(self._clock.position_s(self._now()), "estimated")

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for handle in self._pending:
            handle.cancel()
        self._pending.clear()
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.wait([self._publishing])
        if self._room.isconnected():
            for publication in self._publications:
                await _unpublish(self._room, publication.sid)
        audio, video, self._audio, self._video = self._audio, self._video, None, None
        if audio is not None and video is not None:
            audio.clear_queue()
            await audio.aclose()
            await video.aclose()


async def _connected(room: rtc.Room) -> None:
    """Wait until a room is connected; it may be already."""
    connected = asyncio.Event()

    def on_change(state: rtc.ConnectionState.ValueType) -> None:
        if state == rtc.ConnectionState.CONN_CONNECTED:
            connected.set()

    room.on("connection_state_changed", on_change)
    try:
        if not room.isconnected():
            await connected.wait()
    finally:
        room.off("connection_state_changed", on_change)


async def _unpublish(room: rtc.Room, sid: str) -> None:
    """Take a track out of a room that may be going down at this moment."""
    try:
        async with asyncio.timeout(2):
            await room.local_participant.unpublish_track(sid)
    except (UnpublishTrackError, TimeoutError):
        return
