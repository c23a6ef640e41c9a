"""One stream's encoders: each frame once per codec, however many viewers there are.

Takes a session's frames. Gives parcels, on the event loop, in order. Encodes in threads: one for
each codec of picture and one for sound, so that a slow picture never holds sound back. Never knows
who gets them.

Bounded: a picture that comes while two wait for its encoder is left out (a live stream), or waited
for (an unpaced one). Sound is left out only where two seconds of it wait, when the thread hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from talking_avatar import Frame, MediaInfo
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._outbox import Parcel
from talking_avatar_websocket._packets import AudioCodec, Flags, Kind, MediaPacket, VideoCodec
from talking_avatar_websocket._sound import EncodedSound, SoundEncoder, open_sound_encoder
from talking_avatar_websocket._video import EncodedImage, VideoEncoder, open_video_encoder

T = TypeVar("T")
Deliver: TypeAlias = Callable[[VideoCodec | AudioCodec, Parcel], None]

_MAX_WAITING_IMAGES = 2
_MAX_WAITING_SOUNDS = 48
_SMOOTHING = 0.05
"""Of the mean encode time: about the last second of frames."""


class _Moment(Protocol):
    """What of a frame every packet carries."""

    @property
    def turn_id(self) -> int | None: ...
    @property
    def speaking(self) -> bool: ...


@dataclass(slots=True)
class _VideoLane:
    """One codec's encoder and its thread."""

    thread: ThreadPoolExecutor
    kbps: int
    encoder: VideoEncoder | None = None
    encoder_kbps: int = 0
    num_waiting: int = 0
    num_packets: int = 0
    wants_key: bool = True
    key_at: float = float("-inf")
    encode_s: float | None = None


@dataclass(slots=True)
class _SoundLane:
    """One codec's encoder; all of them share a thread."""

    encoder: SoundEncoder
    num_packets: int = 0


class Broadcast:
    """One stream, from its first frame to its last.

    Args:
        number: Of the stream.
        media: What its frames are.
        limits: For the distance between key frames that are asked for.
        kbps: What video encoders start with.
        deliver: Is given each parcel, on the event loop.

    Attributes:
        num_left_out: Pictures that no encoder had time for.
        error: What an encoder died of.
    """

    def __init__(
        self, number: int, media: MediaInfo, limits: Limits, kbps: int, deliver: Deliver
    ) -> None:
        self.number = number
        self.media = media
        self._limits = limits
        self._kbps = kbps
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._video: dict[VideoCodec, _VideoLane] = {}
        self._sound: dict[AudioCodec, _SoundLane] = {}
        self._sound_thread = ThreadPoolExecutor(1, thread_name_prefix="avatar-websocket-sound")
        self._num_waiting_sounds = 0
        self._generation = 0
        self._is_closed = False
        self.num_left_out = 0
        self.error: BaseException | None = None

    # -- what comes in

    def offer(
        self, frame: Frame, video: Collection[VideoCodec], audio: Collection[AudioCodec]
    ) -> list[asyncio.Future[None]]:
        """Encode a frame for the codecs that somebody takes; give what can be waited for."""
        if self._is_closed:
            return []
        sent_us = int(self._loop.time() * 1e6)
        jobs: list[asyncio.Future[None]] = []
        for audio_codec in audio:
            if self._num_waiting_sounds < _MAX_WAITING_SOUNDS:
                jobs.append(self._offer_sound(audio_codec, frame, sent_us))
        for video_codec in video:
            lane = self._lane(video_codec)
            if self.media.clock == "live" and lane.num_waiting >= _MAX_WAITING_IMAGES:
                self.num_left_out += 1
            else:
                jobs.append(self._offer_image(video_codec, lane, frame, sent_us))
        return jobs

    def request_key(self, codec: VideoCodec) -> None:
        """Make a key frame as soon as the last one that was asked for is old enough."""
        self._lane(codec).wants_key = True

    def set_kbps(self, codec: VideoCodec, kbps: int) -> None:
        """Spend that much from the next frame on; a new encoder, and so a key frame."""
        self._lane(codec).kbps = kbps

    def encode_ms(self, codec: VideoCodec) -> float | None:
        """CPU time of a frame of late; None before the first."""
        lane = self._video.get(codec)
        return None if lane is None or lane.encode_s is None else lane.encode_s * 1e3

    def flush_sound(self) -> None:
        """Forget all sound that was offered and not delivered."""
        self._generation += 1
        if not self._is_closed:
            for lane in self._sound.values():
                self._sound_thread.submit(lane.encoder.clear)

    async def aclose(self) -> None:
        """Let the encoders finish what they are at, and release them. Idempotent."""
        self._is_closed = True
        threads = [self._sound_thread, *(lane.thread for lane in self._video.values())]
        for thread in threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for thread in threads:
            await asyncio.to_thread(thread.shutdown, wait=True)
        self._video.clear()
        self._sound.clear()

    # -- picture

    def _lane(self, codec: VideoCodec) -> _VideoLane:
        lane = self._video.get(codec)
        if lane is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix=f"avatar-websocket-{codec}")
            lane = self._video[codec] = _VideoLane(thread, self._kbps)
        return lane

    def _offer_image(
        self, codec: VideoCodec, lane: _VideoLane, frame: Frame, sent_us: int
    ) -> asyncio.Future[None]:
        now = self._loop.time()
        is_key = lane.wants_key and now - lane.key_at >= self._limits.min_key_interval_s
        if is_key:
            lane.wants_key, lane.key_at = False, now
        lane.num_waiting += 1

        def encode() -> EncodedImage | None:
            started = time.thread_time()
            if lane.encoder is None or lane.encoder_kbps != lane.kbps:
                lane.encoder_kbps = lane.kbps
                lane.encoder = open_video_encoder(codec, self.media, lane.kbps)
            encoded = lane.encoder.encode(frame.image, frame.index, is_key=is_key)
            took_s = time.thread_time() - started
            known = took_s if lane.encode_s is None else lane.encode_s
            lane.encode_s = known + _SMOOTHING * (took_s - known)
            return encoded

        def deliver(encoded: EncodedImage | None) -> None:
            lane.num_waiting -= 1
            if encoded is None:
                return
            packet = MediaPacket(
                kind=Kind.VIDEO,
                codec=codec,
                flags=self._flags(frame, is_key=encoded.is_key),
                sequence=lane.num_packets,
                pts_us=_micros(frame.index, self.media.fps),
                duration_us=_span(frame.index, 1, self.media.fps),
                turn_id=frame.turn_id or 0,
                sent_us=sent_us,
                stream=self.number,
                payload=encoded.data,
            )
            lane.num_packets += 1
            self._deliver(codec, Parcel(packet.to_bytes(), is_video=True, is_key=encoded.is_key))

        return self._run(lane.thread, encode, deliver)

    # -- sound

    def _offer_sound(self, codec: AudioCodec, frame: Frame, sent_us: int) -> asyncio.Future[None]:
        lane = self._sound.get(codec)
        if lane is None:
            encoder = open_sound_encoder(codec, self.media.sample_rate)
            lane = self._sound[codec] = _SoundLane(encoder)
        generation = self._generation
        self._num_waiting_sounds += 1

        def encode() -> list[EncodedSound]:
            return lane.encoder.encode(frame.audio, frame.index * len(frame.audio))

        def deliver(packets: list[EncodedSound]) -> None:
            self._num_waiting_sounds -= 1
            for encoded in packets:
                if generation == self._generation:
                    self._deliver_sound(codec, lane, encoded, frame, sent_us)
                lane.num_packets += 1

        return self._run(self._sound_thread, encode, deliver)

    def _deliver_sound(
        self,
        codec: AudioCodec,
        lane: _SoundLane,
        encoded: EncodedSound,
        moment: _Moment,
        sent_us: int,
    ) -> None:
        rate = self.media.sample_rate
        packet = MediaPacket(
            kind=Kind.AUDIO,
            codec=codec,
            flags=self._flags(moment, is_key=True),
            sequence=lane.num_packets,
            pts_us=_micros(encoded.start, rate),
            duration_us=_span(encoded.start, encoded.num_samples, rate),
            turn_id=moment.turn_id or 0,
            sent_us=sent_us,
            stream=self.number,
            payload=encoded.data,
        )
        self._deliver(codec, Parcel(packet.to_bytes(), is_video=False, is_key=True))

    # -- threads

    def _run(
        self, thread: ThreadPoolExecutor, work: Callable[[], T], deliver: Callable[[T], None]
    ) -> asyncio.Future[None]:
        """Work in a thread, then deliver on the loop; calls of one thread deliver in order."""
        done: asyncio.Future[None] = self._loop.create_future()
        working = self._loop.run_in_executor(thread, work)

        def finish(worked: asyncio.Future[T]) -> None:
            if worked.cancelled():
                done.cancel()
                return
            error = worked.exception()
            if error is not None:
                self.error = self.error or error
            elif not self._is_closed:
                deliver(worked.result())
            if not done.done():
                done.set_result(None)

        working.add_done_callback(finish)
        return done

    @staticmethod
    def _flags(moment: _Moment, *, is_key: bool) -> Flags:
        return (Flags.KEY if is_key else Flags(0)) | (
            Flags.SPEAKING if moment.speaking else Flags(0)
        )


def _micros(count: int, rate: int) -> int:
    """Give a position in microseconds; rounded from the absolute count, so that no error grows."""
    return count * 1_000_000 // rate


def _span(start: int, count: int, rate: int) -> int:
    """Give the microseconds from one position to another, without gap or overlap."""
    return _micros(start + count, rate) - _micros(start, rate)
