"""A stage for avatars: a server, an agent, a user who sees and hears.

The server is `RoomServer`, a test double; a real one when ``LIVEKIT_URL`` (with ``LIVEKIT_API_KEY``
and ``LIVEKIT_API_SECRET``) is set or ``livekit-server`` is on the PATH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

pytest.importorskip("livekit.agents", reason="livekit-agents is not installed")

from livekit.agents import Agent, AgentSession
from livekit.agents.metrics.base import AvatarMetrics
from livekit.agents.voice.io import PlaybackFinishedEvent

from livekit import rtc
from livekit.plugins import talking_avatar
from livekit.plugins.talking_avatar._playout import Handing, PlayoutClock
from livekit.plugins.talking_avatar.testing import ScriptedLLM, ScriptedSTT, ToneTTS
from livekit.plugins.talking_avatar.testing.tokens import participant_token
from talking_avatar import Frame
from talking_avatar.testing import FakeEngine

REPLY = "one two three four five six"
REPLY_S = 2.1
POSITION_S = 0.05
"""How exact a position is: the bar that speech which was cut is remembered by."""


@dataclass(frozen=True)
class RealServer:
    """A livekit-server that runs already."""

    url: str
    api_key: str
    api_secret: str

    def token(
        self,
        identity: str,
        *,
        room: str,
        is_agent: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> str:
        return participant_token(
            self.api_key,
            self.api_secret,
            identity,
            room=room,
            is_agent=is_agent,
            attributes=attributes,
        )


@asynccontextmanager
async def development_server(program: str) -> AsyncIterator[RealServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        program, "--dev", "--port", str(port), stdout=-3, stderr=-3
    )
    try:
        for _ in range(100):
            await asyncio.sleep(0.1)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            writer.close()
            break
        yield RealServer(f"ws://127.0.0.1:{port}", "devkey", "secret")
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def server() -> AsyncIterator[Any]:
    if url := os.environ.get("LIVEKIT_URL"):
        yield RealServer(url, os.environ["LIVEKIT_API_KEY"], os.environ["LIVEKIT_API_SECRET"])
        return
    if program := shutil.which("livekit-server"):
        async with development_server(program) as real:
            yield real
        return
    pytest.importorskip("aiortc", reason="aiortc is not installed")
    from livekit.plugins.talking_avatar.testing.room_server import RoomServer

    async with RoomServer() as double:
        yield double


@dataclass
class User:
    """Somebody in the room who watches and listens."""

    room: rtc.Room = field(default_factory=rtc.Room)
    num_frames: int = 0
    sizes: set[tuple[int, int]] = field(default_factory=set)
    loudest: int = 0
    transcripts: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room.on("track_subscribed", self._take)
        self.room.register_text_stream_handler("lk.transcription", self._take_text)
        self.room.register_byte_stream_handler("lk.agent.session", lambda reader, identity: None)

    def _take(self, track: Any, publication: Any, participant: Any) -> None:
        is_video = track.kind == rtc.TrackKind.KIND_VIDEO
        self.tasks.append(
            asyncio.create_task(self._watch(track) if is_video else self._hear(track))
        )

    def _take_text(self, reader: Any, identity: str) -> None:
        self.tasks.append(asyncio.create_task(self._read(reader)))

    async def _watch(self, track: Any) -> None:
        stream = rtc.VideoStream(track)
        try:
            async for event in stream:
                self.num_frames += 1
                self.sizes.add((event.frame.width, event.frame.height))
        finally:
            await stream.aclose()

    async def _hear(self, track: Any) -> None:
        stream = rtc.AudioStream(track)
        try:
            async for event in stream:
                self.loudest = max(self.loudest, int(np.abs(event.frame.data).max()))
        finally:
            await stream.aclose()

    async def _read(self, reader: Any) -> None:
        text = await reader.read_all()
        if reader.info.attributes.get("lk.transcription_final") == "true":
            self.transcripts.append(text)

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.room.disconnect()


@dataclass
class Sounding:
    """How long the last turn sounded, by the clock that its track's queue drains with.

    A busy machine may run the queue dry in between: such gaps are no speech.
    """

    turn_id: int | None = None
    began: float = 0.0
    gaps_s: float = 0.0
    last_s: float = 0.0

    def spy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hand_over, clear = PlayoutClock.hand_over, PlayoutClock.clear

        def handing(clock: PlayoutClock, frame: Frame, now: float) -> Handing:
            dry_at = clock._dry_at
            handing = hand_over(clock, frame, now)
            if frame.speaking and frame.turn_id != self.turn_id:
                self.turn_id, self.began, self.gaps_s = frame.turn_id, handing.heard_at, 0.0
            else:
                self.gaps_s += max(0.0, handing.heard_at - dry_at)
            return handing

        def clearing(clock: PlayoutClock, now: float) -> None:
            self.last_s = min(now, clock._dry_at) - self.began - self.gaps_s
            clear(clock, now)

        monkeypatch.setattr(PlayoutClock, "hand_over", handing)
        monkeypatch.setattr(PlayoutClock, "clear", clearing)


@dataclass
class Stage:
    """An agent with its avatar in a room."""

    server: Any
    room_name: str
    room: rtc.Room
    session: AgentSession[None]
    stt: ScriptedSTT
    exits: AsyncExitStack
    sounding: Sounding
    finished: list[PlaybackFinishedEvent] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    avatar: talking_avatar.AvatarSession | None = None

    def __post_init__(self) -> None:
        self.session.on("metrics_collected", lambda event: self.metrics.append(event.metrics))

    async def join(self, identity: str = "user") -> User:
        user = User()
        token = self.server.token(identity, room=self.room_name)
        await user.room.connect(self.server.url, token)
        self.exits.push_async_callback(user.leave)
        return user

    async def show(self, avatar: talking_avatar.AvatarSession, **options: Any) -> None:
        """Start an avatar, and the agent if it has not started."""
        self.avatar = avatar
        self.exits.push_async_callback(avatar.aclose)
        await avatar.start(self.session, self.room, **options)

    async def begin(self) -> None:
        await self.session.start(agent=Agent(instructions="talk"), room=self.room)
        assert self.session.output.audio is not None
        self.session.output.audio.on("playback_finished", self.finished.append)

    @property
    def replies(self) -> list[tuple[str, bool]]:
        """What the agent remembers of its own words, and whether they were cut."""
        return [
            ((item.text_content or "").strip(), item.interrupted)
            for item in self.session.history.items
            if item.type == "message" and item.role == "assistant"
        ]


@pytest.fixture
def sounding(monkeypatch: pytest.MonkeyPatch) -> Sounding:
    sounding = Sounding()
    sounding.spy(monkeypatch)
    return sounding


@pytest.fixture
async def stage(server: Any, sounding: Sounding) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as exits:
        name, room, stt = f"room-{uuid4().hex[:8]}", rtc.Room(), ScriptedSTT()
        token = server.token("agent", room=name, is_agent=True)
        await room.connect(server.url, token)
        exits.push_async_callback(room.disconnect)
        session: AgentSession[None] = AgentSession(
            stt=stt,
            llm=ScriptedLLM([REPLY]),
            tts=ToneTTS(),
            vad=None,
            session_close_transcript_timeout=0.0,  # else each test ends with two idle seconds
            turn_handling={
                "turn_detection": "stt",
                "endpointing": {"min_delay": 0.05, "max_delay": 0.1},
            },
        )
        exits.push_async_callback(session.aclose)
        yield Stage(server, name, room, session, stt, exits, sounding)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(width=64, height=96)


async def have_turns(stage: Stage, num_turns: int) -> None:
    """Have turns of which every other is cut, after 0.5 s and more; check each as it ends."""
    output = stage.session.output.audio
    for turn in range(num_turns):
        started = asyncio.Event()
        output.once("playback_started", lambda event, started=started: started.set())
        handle = stage.session.generate_reply(user_input=f"question {turn}")
        await asyncio.wait_for(started.wait(), 5)
        if turn % 2:
            await asyncio.sleep(0.4 + 0.1 * turn)
            await asyncio.wait_for(stage.session.interrupt(), 5)
        await asyncio.wait_for(handle, 10)
        event = stage.finished[-1]
        assert len(stage.finished) == turn + 1
        assert event.interrupted == bool(turn % 2)
        if turn % 2:
            assert event.playback_position == pytest.approx(stage.sounding.last_s, abs=POSITION_S)
            # With a worker words go on until its report has come: LiveKit paces them by the clock.
            most = 6 if stage.avatar.avatar_identity == "agent" else 7
            assert 0 < len(event.synchronized_transcript.split()) < most
            assert REPLY.startswith(event.synchronized_transcript.strip())
        else:
            assert event.playback_position == pytest.approx(REPLY_S, abs=0.05)
            assert event.synchronized_transcript.strip() == REPLY


def check_turns(metrics: list[Any], *, num_turns: int) -> None:
    """Check what ``metrics_collected`` told of a conversation."""
    turns = [metric for metric in metrics if isinstance(metric, talking_avatar.TurnMetrics)]
    assert [turn.turn_id for turn in turns] == list(range(1, num_turns + 1))
    assert [turn.interrupted for turn in turns] == [False, True] * (num_turns // 2)
    assert all(turn.skew_s == 0 for turn in turns)
    assert all(turn.generate_s is not None and turn.generate_s > 0 for turn in turns)
    assert all(turn.transport_s is not None for turn in turns)
    assert turns[-1].held_s > turns[0].held_s > 0
    theirs = [metric for metric in metrics if type(metric) is AvatarMetrics]
    assert any(metric.avatar_joined_time for metric in theirs)
    assert sum(metric.playback_latency > 0 for metric in theirs) == num_turns


@pytest.fixture
def converse() -> Any:
    return have_turns


@pytest.fixture
def check_metrics() -> Any:
    return check_turns
