"""A conversation on the real portrait engine, in real time: case 24 and what a barge-in looks like.

No number here depends on how fast the machine is: frames that come late still follow each other.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np

from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.config import PortraitConfig
from talking_avatar.media import decode_file
from talking_avatar.session import AvatarSession
from talking_avatar.testing import RecordingTransport

RATE = 24_000
SMALL = PortraitConfig(width=176, height=272)


def steps_of(transport: RecordingTransport) -> np.ndarray:
    """Give the mean absolute pixel difference from each frame to the next."""
    images = np.stack([frame.image for frame in transport.frames]).astype(np.int16)
    steps: np.ndarray = np.abs(np.diff(images, axis=0)).mean(axis=(1, 2, 3))
    return steps


async def test_talking_barging_in_and_idling_have_no_seam() -> None:
    speech = await asyncio.to_thread(decode_file, speech_path())
    transport = RecordingTransport()
    async with AvatarSession(portrait_path(), engine=SMALL, transport=transport) as session:
        await session.idle(0.5)
        await session.say(speech[: 2 * RATE], sample_rate=RATE)
        await session.idle(0.3)
        for cut_after_s in (0.7, 1.1):
            saying = asyncio.create_task(session.say(speech[RATE:], sample_rate=RATE))
            await asyncio.sleep(cut_after_s)
            await session.interrupt()
            assert (await saying).interrupted
            await session.idle(0.3)
        await session.say(speech[:RATE], sample_rate=RATE)
    frames, steps = transport.frames, steps_of(transport)
    assert [frame.index for frame in frames] == list(range(len(frames)))
    spoken = [frame.speaking for frame in frames]
    inside = np.array([a and b for a, b in pairwise(spoken)])
    seams = np.array([a != b for a, b in pairwise(spoken)])
    assert seams.sum() in (7, 8), "four turns begin and end; the last may end with the session"
    assert steps[~inside].max() <= 1.5 * steps[inside].max()
    assert steps.min() > 0, "it is never a still picture"
