"""A transport that keeps what it was handed, and when; slow or absent on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from talking_avatar.errors import TransportClosed
from talking_avatar.transport import MediaInfo, Transport
from talking_avatar.types import Frame, Position, PositionSource


@dataclass(frozen=True, slots=True)
class SentFrame:
    """One frame as it was handed over, and the loop's time then."""

    at: float
    frame: Frame


class RecordingTransport(Transport):
    """Keeps every frame, or the last ``keep``.

    Args:
        send_s: Seconds that each `send` takes.
        keep: Frames kept; None: all.
        delay_s: Seconds from handing over to playing at a far end that acknowledges; None: it
            does not know what was played.
        source: How that position is known.

    Attributes:
        sent: The frames.
        media: What `open` was told; None before.
        num_interrupts: Calls of `interrupt`.
        is_closed: Whether `aclose` was called.
        is_gone: Set it: the next `send` raises `TransportClosed`.
    """

    def __init__(
        self,
        *,
        send_s: float = 0.0,
        keep: int | None = None,
        delay_s: float | None = None,
        source: PositionSource = "acknowledged",
    ) -> None:
        self._send_s = send_s
        self._delay_s = delay_s
        self._source = source
        self.sent: deque[SentFrame] = deque(maxlen=keep)
        self.media: MediaInfo | None = None
        self.num_interrupts = 0
        self.is_closed = False
        self.is_gone = False

    async def open(self, media: MediaInfo) -> None:
        self.media = media

    async def send(self, frame: Frame) -> None:
        if self.is_gone:
            raise TransportClosed("the far end has gone")
        self.sent.append(SentFrame(asyncio.get_running_loop().time(), frame))
        if self._send_s:
            await asyncio.sleep(self._send_s)

    async def interrupt(self) -> None:
        self.num_interrupts += 1

    def played_position(self) -> Position | None:
        if self._delay_s is None:
            return None
        until = asyncio.get_running_loop().time() - self._delay_s
        for sent in reversed(self.sent):
            if sent.at <= until:
                return Position(sent.frame.pts + min(until - sent.at, 1 / 24), self._source)
        return Position(0.0, self._source)

    async def aclose(self) -> None:
        self.is_closed = True

    @property
    def frames(self) -> list[Frame]:
        """The frames that are kept."""
        return [sent.frame for sent in self.sent]

    def sound(self, turn_id: int | None = None) -> npt.NDArray[np.int16]:
        """Give the sound of all kept frames, or of those that speak for one turn, in a row."""
        frames = [
            frame
            for frame in self.frames
            if turn_id is None or (frame.turn_id == turn_id and frame.speaking)
        ]
        return np.concatenate([np.zeros(0, np.int16), *(frame.audio for frame in frames)])
