"""What every transport must do, as checks that its author runs.

    @pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
    async def test_conformance(check, tmp_path):
        await check(lambda: FileTransport(tmp_path / "out.mp4"))

Each check makes transports of its own, uses them as a session does, and raises `AssertionError`
where one breaks the promise of `talking_avatar.transport`. They run in real time, a second at
most each, and need no test framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import numpy as np

from talking_avatar.errors import TransportClosed
from talking_avatar.session import AvatarSession
from talking_avatar.testing.fake_engine import FakeEngine
from talking_avatar.testing.signals import counted
from talking_avatar.transport import MediaInfo, Transport
from talking_avatar.types import ClockMode, Frame, PixelFormat

MakeTransport: TypeAlias = Callable[[], Transport]
TransportCheck: TypeAlias = Callable[[MakeTransport], Awaitable[None]]

_WIDTH, _HEIGHT = 128, 192
_CLOSE_S = 10.0


def _media(clock: ClockMode = "unpaced", pixel_format: PixelFormat = "rgb24") -> MediaInfo:
    return MediaInfo(
        width=_WIDTH,
        height=_HEIGHT,
        pixel_format=pixel_format,
        fps=24,
        sample_rate=24_000,
        clock=clock,
    )


def _frame(index: int, pixel_format: PixelFormat = "rgb24") -> Frame:
    """Give a frame whose arrays are read-only: a transport that writes into them is found out."""
    rows, planes = (_HEIGHT, (3,)) if pixel_format == "rgb24" else (_HEIGHT * 3 // 2, ())
    image = np.full((rows, _WIDTH, *planes), 16 + index % 200, np.uint8)
    audio = counted(1 / 24)
    image.flags.writeable = audio.flags.writeable = False
    return Frame(index, image, audio, index / 24, turn_id=1, speaking=True)


async def _close(transport: Transport) -> None:
    with anyio.move_on_after(_CLOSE_S) as scope:
        await transport.aclose()
        await transport.aclose()
    assert not scope.cancelled_caught, f"aclose() took more than {_CLOSE_S:g} s"


async def takes_frames_in_both_layouts(make: MakeTransport) -> None:
    """Open, one second of frames, close, close again."""
    for pixel_format in ("rgb24", "i420"):
        transport = make()
        await transport.open(_media(pixel_format=pixel_format))
        for index in range(24):
            await transport.send(_frame(index, pixel_format))
        await _close(transport)


async def closes_at_any_time(make: MakeTransport) -> None:
    """Close without opening, without a frame, and after one."""
    await _close(make())
    for num_frames in (0, 1):
        transport = make()
        await transport.open(_media())
        for index in range(num_frames):
            await transport.send(_frame(index))
        await _close(transport)


async def takes_interruptions_at_any_time(make: MakeTransport) -> None:
    """Interrupt before the first frame, twice in a row, and between frames."""
    transport = make()
    await transport.open(_media("live"))
    await transport.interrupt()
    for index in range(6):
        await transport.send(_frame(index))
        if index == 3:
            await transport.interrupt()
            await transport.interrupt()
    await _close(transport)


async def knows_no_more_than_it_was_handed(make: MakeTransport) -> None:
    """The played position never goes back and never passes what was handed over."""
    transport = make()
    await transport.open(_media("live"))
    before = 0.0
    for index in range(12):
        await transport.send(_frame(index))
        position = transport.played_position()
        if position is not None:
            assert position.source in ("acknowledged", "estimated", "handed_out")
            assert before <= position.seconds <= (index + 1) / 24 + 1e-6, (
                f"{position} after {index + 1} frames, before it {before:.3f} s"
            )
            before = position.seconds
    await _close(transport)


async def survives_a_cancelled_send(make: MakeTransport) -> None:
    """A send that is cancelled leaves a transport that closes."""
    transport = make()
    await transport.open(_media("live"))
    for index in range(24):
        sending = asyncio.create_task(transport.send(_frame(index)))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        failure = None if sending.cancelled() else sending.exception()
        assert failure is None or isinstance(failure, TransportClosed), repr(failure)
    await _close(transport)


async def carries_a_conversation(make: MakeTransport) -> None:
    """A live session speaks, is interrupted, and speaks again."""
    engine = FakeEngine(width=_WIDTH, height=_HEIGHT)
    async with AvatarSession("any", engine=engine, transport=make()) as session:
        saying = asyncio.create_task(session.say(counted(5), sample_rate=24_000))
        await asyncio.sleep(0.3)
        position = await session.interrupt()
        result = await saying
        assert result.interrupted
        assert result.played_s == position.seconds <= 0.4
        whole = await session.say(counted(0.2), sample_rate=24_000)
        assert (whole.played_s, whole.interrupted) == (0.2, False)


TRANSPORT_CHECKS: tuple[TransportCheck, ...] = (
    takes_frames_in_both_layouts,
    closes_at_any_time,
    takes_interruptions_at_any_time,
    knows_no_more_than_it_was_handed,
    survives_a_cancelled_send,
    carries_a_conversation,
)
"""All checks."""
