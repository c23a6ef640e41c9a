"""The same conversation with the avatar rendered elsewhere, and all that can happen to a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from livekit.agents.types import APIConnectOptions

from livekit import rtc
from livekit.plugins import talking_avatar
from livekit.plugins.talking_avatar.worker import Dispatcher, WorkerOptions
from livekit.plugins.talking_avatar.worker import dispatcher as dispatcher_module
from livekit.plugins.talking_avatar.worker import session as session_module
from talking_avatar.engine.base import Device
from talking_avatar.testing import FakeEngine

pytestmark = pytest.mark.livekit

REPLY = "one two three four five six"
TOKEN = "the-workers-own-token"
QUICK = APIConnectOptions(max_retry=1, retry_interval=0.05, timeout=2.0)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(width=64, height=96, devices=(Device("cuda:0", "H200", "denoise"),))


@pytest.fixture
async def worker(engine: FakeEngine, monkeypatch: Any) -> AsyncIterator[Dispatcher]:
    async with make_worker(engine, monkeypatch, max_sessions=2) as worker:
        yield worker


def make_worker(engine: FakeEngine, monkeypatch: Any, **options: Any) -> Dispatcher:
    async def open_fake(config: Any) -> FakeEngine:
        return engine

    monkeypatch.setattr(dispatcher_module, "open_engine", open_fake)
    return Dispatcher(WorkerOptions(port=0, token=TOKEN, **options))


def remote(worker: Dispatcher, **options: Any) -> talking_avatar.AvatarSession:
    given = {"photo": b"any", "worker_token": TOKEN, "conn_options": QUICK, **options}
    return talking_avatar.AvatarSession(worker_url=worker.url, **given)


def credentials(stage: Any) -> dict[str, str]:
    server = stage.server
    return {
        "livekit_url": server.url,
        "livekit_api_key": server.api_key,
        "livekit_api_secret": server.api_secret,
    }


async def until(condition: Any, *, seconds: float = 5.0) -> None:
    for _ in range(round(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to be")


async def test_ten_turns_with_five_barge_ins(
    stage: Any, worker: Dispatcher, converse: Any, check_metrics: Any
) -> None:
    user = await stage.join()
    avatar = remote(worker)
    await stage.show(avatar, **credentials(stage))
    await stage.begin()
    await avatar.wait_for_join(timeout=10)
    assert avatar.avatar_identity == "talking-avatar-agent"
    await converse(stage, 10)
    await until(lambda: sum(isinstance(m, talking_avatar.TurnMetrics) for m in stage.metrics) == 10)
    check_metrics(stage.metrics, num_turns=10)
    assert user.num_frames > 100
    assert user.loudest > 5_000
    assert avatar.gpu_hours() > 10 / 3600
    await avatar.aclose()
    assert worker.num_sessions == 0
    held = avatar.gpu_hours()
    await asyncio.sleep(0.2)
    assert avatar.gpu_hours() == held


@pytest.mark.slow
async def test_many_interruptions_at_every_moment(stage: Any, worker: Dispatcher) -> None:
    """Also before the worker has read the first byte; then a whole reply."""
    await stage.join()
    avatar = remote(worker)
    await stage.show(avatar, **credentials(stage))
    await stage.begin()
    await avatar.wait_for_join(timeout=10)
    for number in range(20):
        handle = stage.session.generate_reply(user_input="hello")
        await asyncio.sleep(0.02 * number)
        await asyncio.wait_for(stage.session.interrupt(), 5)
        await asyncio.wait_for(handle, 5)
    await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
    assert stage.finished[-1].synchronized_transcript.strip() == REPLY
    assert not stage.finished[-1].interrupted
    assert all(event.interrupted for event in stage.finished[:-1])
    assert stage.session.output.audio._pending_playback_count == 0


async def test_no_secret_leaves(stage: Any, worker: Dispatcher, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    user = await stage.join()
    avatar = remote(worker)
    await stage.show(avatar, **credentials(stage))
    await avatar.wait_for_join(timeout=10) if avatar._wait_avatar_join_task else None
    await until(lambda: "talking-avatar-agent" in user.room.remote_participants)
    participant = user.room.remote_participants["talking-avatar-agent"]
    assert participant.attributes == {"lk.publish_on_behalf": "agent"}
    assert participant.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT
    assert not participant.metadata
    told = caplog.text + repr(avatar.__dict__)
    assert TOKEN not in caplog.text
    assert stage.server.api_secret not in told


async def test_a_full_worker_refuses_by_name(stage: Any, engine: Any, monkeypatch: Any) -> None:
    async with make_worker(engine, monkeypatch, max_sessions=1) as worker:
        await stage.show(remote(worker), **credentials(stage))
        second = remote(worker, avatar_participant_identity="another")
        before = stage.session.output.audio
        with pytest.raises(talking_avatar.AtCapacity, match="all 1 sessions are taken"):
            await second.start(stage.session, stage.room, **credentials(stage))
        assert stage.session.output.audio is before
        async with aiohttp.ClientSession() as http, http.get(worker.url + "/health") as response:
            assert await response.json() == {"num_sessions": 1, "max_sessions": 1}


async def test_a_wrong_token_and_an_absent_worker_are_said(stage: Any, worker: Dispatcher) -> None:
    wrong = remote(worker, worker_token="guess")
    with pytest.raises(talking_avatar.TalkingAvatarError, match="token is missing or wrong"):
        await wrong.start(stage.session, stage.room, **credentials(stage))
    absent = talking_avatar.AvatarSession(
        photo=b"any", worker_url="http://127.0.0.1:9", conn_options=QUICK
    )
    with pytest.raises(talking_avatar.TalkingAvatarError, match="could not be reached"):
        await absent.start(stage.session, stage.room, **credentials(stage))


async def test_without_credentials_it_says_which(stage: Any, worker: Any, monkeypatch: Any) -> None:
    for name in ("LIVEKIT_URL", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="LIVEKIT_API_SECRET"):
        await remote(worker).start(stage.session, stage.room, livekit_url="ws://x")


async def test_a_bad_photo_is_said_by_the_worker(stage: Any) -> None:
    async with Dispatcher(WorkerOptions(port=0, token=TOKEN)) as worker:
        with pytest.raises(talking_avatar.PhotoError, match="UnreadableImage on the worker"):
            await remote(worker).start(stage.session, stage.room, **credentials(stage))
        assert worker.num_sessions == 0


async def test_the_avatar_leaves_with_its_agent(
    stage: Any, worker: Dispatcher, monkeypatch: Any
) -> None:
    monkeypatch.setattr(session_module, "AGENT_RETURNS_S", 0.2)
    user = await stage.join()
    await stage.show(remote(worker), **credentials(stage))
    await until(lambda: len(user.room.remote_participants) == 2)
    await stage.room.disconnect()
    await until(lambda: worker.num_sessions == 0)
    await until(lambda: not user.room.remote_participants)


async def test_the_longest_session_ends_and_is_said(
    stage: Any, engine: Any, monkeypatch: Any
) -> None:
    async with make_worker(engine, monkeypatch, max_session_s=1.0) as worker:
        avatar = remote(worker)
        reasons: list[str] = []
        avatar.on("ended", reasons.append)
        await stage.show(avatar, **credentials(stage))
        await until(lambda: worker.num_sessions == 0)
        await until(lambda: reasons == ["max_duration"])
        await avatar.aclose()
        assert 0.9 / 3600 < avatar.gpu_hours() < 3 / 3600


@pytest.mark.slow
async def test_one_avatar_takes_the_place_of_another(stage: Any, worker: Dispatcher) -> None:
    await stage.join()
    avatar = remote(worker)
    await stage.show(avatar, **credentials(stage))
    await stage.begin()
    for number in range(2):
        await avatar.wait_for_join(timeout=10)
        await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
        assert stage.finished[-1].synchronized_transcript.strip() == REPLY
        await avatar.aclose()
        avatar = remote(worker, avatar_participant_identity=f"face-{number}")
        await stage.show(avatar, **credentials(stage))


def test_a_worker_open_to_all_needs_a_token() -> None:
    with pytest.raises(ValueError, match="state a token"):
        WorkerOptions(host="0.0.0.0")
