"""The seam between a session and whatever carries its frames away.

Takes: the session's `Frame`s, in order, each at its due time.
Gives: how much of them the far end has played, where it can know.
Never: paces, reorders, or knows what a turn says.

A transport is handed one frame at a time: the next `Transport.send` begins when the one before
has returned. A live session does not wait for a slow one: frames that come due meanwhile queue up
to `QUEUE_FRAMES`; past that the oldest are dropped and counted as ``stats().transport_dropped``.
An unpaced session waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from talking_avatar.types import ClockMode, Frame, PixelFormat, Position

QUEUE_FRAMES = 12
"""Half a second: long enough for one slow write, short enough to stay a conversation; 27 MB of
RGB at 704x1088."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaInfo:
    """What a transport is going to be handed.

    Attributes:
        width, height: Pixels of a frame; both even.
        pixel_format: How `Frame.image` is laid out.
        fps: Frames a second.
        sample_rate: Samples a second of `Frame.audio`, which is mono int16.
        clock: ``"live"``: one frame every ``1 / fps`` seconds. ``"unpaced"``: as fast as `send`
            returns.
    """

    width: int
    height: int
    pixel_format: PixelFormat
    fps: int
    sample_rate: int
    clock: ClockMode


@runtime_checkable
class Transport(Protocol):
    """Where frames go. Subclass it: only `send` must be written.

    A session opens its transport once, closes it once, and calls nothing after that.
    """

    async def open(self, media: MediaInfo) -> None:
        """Get ready for the first frame. Raises what made it impossible."""
        return

    async def send(self, frame: Frame) -> None:
        """Take one frame. Return when the next one may come; copy nothing that is only read.

        Cancelled when the session closes.

        Raises:
            TransportClosed: The far end has gone for good. The session then runs on without it.
        """
        ...

    async def interrupt(self) -> None:
        """Drop what was handed over and is not yet played, here and at the far end.

        Called by `AvatarSession.interrupt` after the last wanted frame; frames that follow belong
        to what comes next. Wait for the far end's acknowledgement if there is one to be had: the
        session waits at most `INTERRUPT_WAIT_S` and asks `played_position` then.
        """
        return

    def played_position(self) -> Position | None:
        """How far the far end has played, in seconds on the media timeline (`Frame.pts`).

        Returns:
            The end of the last sample that was played, and how that is known; None where the
            transport can't say. The session then counts what it handed out.
        """
        return None

    async def aclose(self) -> None:
        """Finish and release everything. Idempotent. Must end in bounded time."""
        return


INTERRUPT_WAIT_S = 0.25
"""How long an interruption waits for the far end's word before it estimates."""
