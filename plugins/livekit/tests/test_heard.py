"""The position of speech that was cut, against what somebody else in the room heard of it.

Speech is a whistle that rises 1 Hz a millisecond, so that any piece of it tells where it belongs.
A listener with a connection of its own notes the highest pitch that came: nothing of the plugin is
asked. What was held back, sped up or repeated on the way doesn't matter, for it keeps its pitch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from livekit import rtc
from livekit.plugins import talking_avatar
from livekit.plugins.talking_avatar.worker import Dispatcher, WorkerOptions
from livekit.plugins.talking_avatar.worker import dispatcher as dispatcher_module
from talking_avatar.testing import FakeEngine

pytestmark = pytest.mark.livekit

RATE = 24_000
LOW_HZ, RISE_HZ_PER_S = 400.0, 1_000.0
SPEECH_S = 6.0
WINDOW = RATE // 50
HOP = RATE // 200
AUDIBLE = 1_000
POSITION_S = 0.05
NUM_CUTS = 8


def whistle() -> npt.NDArray[np.int16]:
    """Give int16 (n,): `SPEECH_S` of it."""
    time_s = np.arange(round(SPEECH_S * RATE)) / RATE
    turns = LOW_HZ * time_s + RISE_HZ_PER_S * time_s**2 / 2
    sound: npt.NDArray[np.int16] = (8_000 * np.sin(2 * np.pi * turns)).astype(np.int16)
    return sound


async def speech() -> AsyncIterator[rtc.AudioFrame]:
    """Give it as a voice does, 50 ms a piece and faster than it is heard."""
    for piece in np.split(whistle(), round(SPEECH_S * 20)):
        yield rtc.AudioFrame(piece.tobytes(), RATE, 1, len(piece))


def positions_s(sound: npt.NDArray[np.int16]) -> list[float]:
    """Give the end of each window in seconds of the whistle, where it is heard."""
    found = []
    hann = np.hanning(WINDOW)
    for at in range(0, len(sound) - WINDOW + 1, HOP):
        window = sound[at : at + WINDOW].astype(np.float64)
        if np.abs(window[-HOP:]).max() < AUDIBLE or np.abs(window[:HOP]).max() < AUDIBLE:
            continue
        power = np.abs(np.fft.rfft(window * hann, 16 * WINDOW)) ** 2
        pitch_hz = int(power.argmax()) * RATE / (16 * WINDOW)
        found.append((pitch_hz - LOW_HZ) / RISE_HZ_PER_S + WINDOW / RATE / 2)
    return found


@dataclass
class Listener:
    """Somebody in the room who records."""

    room: rtc.Room = field(default_factory=rtc.Room)
    pieces: list[npt.NDArray[np.int16]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room.on("track_subscribed", self._take)

    def _take(self, track: Any, publication: Any, participant: Any) -> None:
        if track.kind == rtc.TrackKind.KIND_AUDIO:
            self.tasks.append(asyncio.create_task(self._hear(track)))

    async def _hear(self, track: Any) -> None:
        stream = rtc.AudioStream(track, sample_rate=RATE, num_channels=1)
        try:
            async for event in stream:
                self.pieces.append(np.frombuffer(event.frame.data, np.int16).copy())
        finally:
            await stream.aclose()

    async def heard_all(self) -> npt.NDArray[np.int16]:
        """Wait until it has been silent for half a second; give everything since the last call."""
        while not self.pieces or np.abs(np.concatenate(self.pieces[-50:])).max() > AUDIBLE // 4:
            await asyncio.sleep(0.05)
        sound = np.concatenate(self.pieces)
        self.pieces.clear()
        return sound

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.room.disconnect()


async def join(stage: Any) -> Listener:
    listener = Listener()
    token = stage.server.token("listener", room=stage.room_name)
    await listener.room.connect(stage.server.url, token)
    stage.exits.push_async_callback(listener.leave)
    return listener


async def differences_s(stage: Any, listener: Listener) -> list[float]:
    """Cut speech at random times; give how far each reported position is past what was heard."""
    rng = np.random.default_rng(5)
    differences = []
    output = stage.session.output.audio
    for _ in range(NUM_CUTS):
        started = asyncio.Event()
        output.once("playback_started", lambda event, started=started: started.set())
        listener.pieces.clear()
        handle = stage.session.say("whistle", audio=speech())
        await asyncio.wait_for(started.wait(), 5)
        await asyncio.sleep(rng.uniform(0.2, 2.5))
        await asyncio.wait_for(stage.session.interrupt(), 5)
        await asyncio.wait_for(handle, 5)
        await asyncio.sleep(0.6)
        heard = positions_s(await asyncio.wait_for(listener.heard_all(), 5))
        assert heard[0] < 0.1  # it was heard from its beginning, and what it measures is the turn
        assert stage.finished[-1].interrupted
        differences.append(stage.finished[-1].playback_position - max(heard))
    print("reported - heard, ms:", [round(1e3 * each) for each in differences])
    return differences


def test_the_ear_reads_positions() -> None:
    """Of any piece, also one that is followed by silence."""
    sound = whistle()
    for start_s, end_s in ((0.0, 0.5), (1.03, 2.511), (4.0, 6.0)):
        piece = sound[round(start_s * RATE) : round(end_s * RATE)]
        heard = positions_s(np.concatenate([np.zeros(777, np.int16), piece, np.zeros(RATE, "i2")]))
        assert min(heard) == pytest.approx(start_s + WINDOW / RATE, abs=0.01)
        assert max(heard) == pytest.approx(end_s, abs=0.01)


@pytest.mark.slow
async def test_a_listener_heard_what_was_reported(stage: Any, engine: FakeEngine) -> None:
    listener = await join(stage)
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
    await stage.show(avatar)
    await stage.begin()
    await avatar.wait_for_join(timeout=10)
    await listener_is_there(listener)
    assert await differences_s(stage, listener) == pytest.approx([0.0] * NUM_CUTS, abs=POSITION_S)


@pytest.mark.slow
async def test_a_listener_heard_what_a_worker_reported(
    stage: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_fake(config: Any) -> FakeEngine:
        return engine

    monkeypatch.setattr(dispatcher_module, "open_engine", open_fake)
    listener = await join(stage)
    async with Dispatcher(WorkerOptions(port=0, token="its-own")) as worker:
        avatar = talking_avatar.AvatarSession(
            photo=b"any", worker_url=worker.url, worker_token="its-own"
        )
        server = stage.server
        await stage.show(
            avatar,
            livekit_url=server.url,
            livekit_api_key=server.api_key,
            livekit_api_secret=server.api_secret,
        )
        await stage.begin()
        await avatar.wait_for_join(timeout=10)
        await listener_is_there(listener)
        differences = await differences_s(stage, listener)
        await avatar.aclose()
    assert differences == pytest.approx([0.0] * NUM_CUTS, abs=POSITION_S)


async def listener_is_there(listener: Listener) -> None:
    """Wait until it gets sound, be it silence."""
    for _ in range(200):
        if listener.pieces:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no sound came")
