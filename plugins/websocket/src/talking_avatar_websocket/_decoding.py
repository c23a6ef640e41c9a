"""Packets of one stream into images and samples, for the Python client.

Takes packets in the order in which they came. Gives arrays; None for what cannot be decoded because
something before it did not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from talking_avatar_websocket._packets import AudioCodec, MediaPacket
from talking_avatar_websocket._sound import BadSound, MicrophoneDecoder

if TYPE_CHECKING:
    from av import VideoCodecContext

_FFMPEG_NAMES: dict[str, str] = {"vp8": "vp8", "h264": "h264", "jpeg": "mjpeg"}


class StreamDecoder:
    """Decodes one stream, on the event loop: 3 ms a frame of 704x1088."""

    def __init__(self) -> None:
        self._video: VideoCodecContext | None = None
        self._sound: MicrophoneDecoder | None = None
        self._next_video: int | None = None

    def reset(self) -> None:
        """Another stream begins."""
        self._video = self._sound = self._next_video = None

    def picture(self, packet: MediaPacket) -> npt.NDArray[np.uint8] | None:
        """Decode a frame; None if what it needs did not come."""
        from av import CodecContext, Packet
        from av.error import FFmpegError

        is_in_order = packet.is_key or packet.sequence == self._next_video
        self._next_video = packet.sequence + 1 if is_in_order else None
        if not is_in_order:
            return None
        if self._video is None:
            self._video = CodecContext.create(_FFMPEG_NAMES[packet.codec], "r")  # type: ignore[assignment]
            assert self._video is not None
            self._video.thread_count = 1
        try:
            frames = self._video.decode(Packet(bytes(packet.payload)))
        except FFmpegError:
            return None
        images = [np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in frames]
        return images[-1] if images else None

    def sound(
        self, packet: MediaPacket, sample_rate: int
    ) -> tuple[npt.NDArray[np.int16] | None, int]:
        """Decode a packet of sound."""
        if self._sound is None:
            codec: AudioCodec = "opus" if packet.codec == "opus" else "pcm"
            self._sound = MicrophoneDecoder(codec, sample_rate)
        try:
            return self._sound.decode(packet.payload), self._sound.sample_rate
        except BadSound:
            return None, 0
