"""The example of a voice agent holds a conversation."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from talking_avatar.session import AvatarSession
from talking_avatar.testing import FakeEngine, RecordingTransport, counted, in_virtual_time

RATE = 24_000


@pytest.fixture
def example() -> Iterator[ModuleType]:
    path = Path(__file__).parents[2] / "examples" / "voice_agent.py"
    spec = importlib.util.spec_from_file_location("voice_agent_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def user(*script: tuple[str, float]) -> np.ndarray:
    """Make what the microphone hears: ``("speech" | "silence", seconds)``..."""
    noise = np.random.default_rng(0).normal(0, 0.1, 30 * RATE).astype(np.float32)
    return np.concatenate(
        [noise[: round(s * RATE)] * (what == "speech") for what, s in script]
    ).astype(np.float32)


async def synthesize(text: str) -> AsyncIterator[np.ndarray]:
    """Three seconds, four times as fast as they sound, after half a second of thinking."""
    await asyncio.sleep(0.5)
    speech = counted(3)
    for at in range(0, len(speech), 2_400):
        yield speech[at : at + 2_400]
        await asyncio.sleep(0.025)


@in_virtual_time
async def test_it_answers_is_interrupted_and_shrugs_off_a_cough(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = RecordingTransport()
    async with AvatarSession("any", engine=FakeEngine(), transport=transport) as session:
        agent = example.Agent(session, synthesize, RATE)
        heard = user(
            ("silence", 1.0),
            ("speech", 1.5),
            ("silence", 2.0),
            ("speech", 0.1),  # a cough: the answer pauses and goes on
            ("silence", 5.0),
            ("speech", 1.0),
            ("silence", 2.5),
            ("speech", 1.0),  # a barge-in: the answer is cut
            ("silence", 6.0),
        )
        await agent.converse(example.playing(heard))
        stats = session.stats()
    whole, cut, last = agent.results
    assert (whole.interrupted, whole.played_s) == (False, 3.0)
    assert cut.interrupted
    assert 0.5 < cut.played_s < 2.0
    assert (last.interrupted, last.played_s) == (False, 3.0)
    assert stats.num_stalls == 0
    sound = transport.sound(1)
    assert len(sound) == 72_000
    assert (sound != counted(3)).sum() <= 48, "nothing is lost to the cough"
    assert whole.latency.voice_agent_s == pytest.approx(1.0, abs=0.05)
    printed = capsys.readouterr().out
    assert printed.count("answered after") == 3
    assert printed.count("interrupted after") == 1


def test_a_recorded_user_speaks_and_is_silent(example: ModuleType) -> None:
    speech = np.full(3 * RATE, 0.2, np.float32)
    voice, changes = example.VoiceActivity(), []
    sound = example.recorded_user(speech)
    for at in range(0, len(sound) - 480, 480):
        changes.append(voice.hear(sound[at : at + 480]))
    assert [change for change in changes if change] == ["started", "ended"] * 3


@in_virtual_time
async def test_a_recording_can_stand_in_for_synthesis(example: ModuleType) -> None:
    chunks = [chunk async for chunk in example.recorded(np.ones(RATE, np.float32))("any text")]
    assert sum(len(chunk) for chunk in chunks) == RATE


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
async def test_espeak_streams(example: ModuleType) -> None:
    chunks = [chunk async for chunk in example.espeak("Good morning.")]
    assert len(chunks) > 1
    assert sum(len(chunk) for chunk in chunks) > 22_050
    stopped = example.espeak(" ".join(example.REPLIES) * 5)
    await anext(stopped)
    await stopped.aclose()
