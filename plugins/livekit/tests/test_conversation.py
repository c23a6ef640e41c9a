"""A whole conversation through a room: LiveKit's `AgentSession`, the avatar, an impatient user."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from livekit.plugins import talking_avatar
from talking_avatar.testing import FakeEngine

pytestmark = pytest.mark.livekit

REPLY = "one two three four five six"
REPLY_S = 2.1


async def test_ten_turns_with_five_barge_ins(
    stage: Any, engine: FakeEngine, converse: Any, check_metrics: Any
) -> None:
    user = await stage.join()
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
    await stage.show(avatar)
    await stage.begin()
    await avatar.wait_for_join(timeout=10)
    assert avatar.avatar_identity == "agent"
    await converse(stage, 10)
    said = stage.replies
    assert [cut for _, cut in said] == [False, True] * 5
    assert all(text == REPLY for text, cut in said if not cut)
    assert all(REPLY.startswith(text) and text != REPLY for text, cut in said if cut)
    assert user.num_frames > 100
    assert user.sizes == {(64, 96)}
    assert user.loudest > 5_000
    assert user.transcripts.count(REPLY + " ") >= 5
    check_metrics(stage.metrics, num_turns=10)


async def test_the_users_voice_interrupts_and_a_cough_does_not(
    stage: Any, engine: FakeEngine
) -> None:
    """Speech pauses the avatar at once; with words it is an interruption, without it goes on."""
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
    await stage.join()
    await stage.show(avatar)
    await stage.begin()
    assert stage.session.output.audio.can_pause
    handle = stage.session.generate_reply(user_input="hello")
    await asyncio.sleep(1.0)
    stage.stt.hear("wait a moment")
    await asyncio.wait_for(handle, 5)
    assert handle.interrupted
    assert stage.finished[0].interrupted
    assert stage.finished[0].playback_position < 1.1
    for _ in range(100):
        if len(stage.finished) == 2:
            break
        await asyncio.sleep(0.1)
    assert not stage.finished[1].interrupted  # its answer to that


async def test_the_agent_may_start_before_the_avatar(stage: Any, engine: FakeEngine) -> None:
    await stage.join()
    await stage.begin()
    await stage.show(talking_avatar.AvatarSession(photo="any", engine=engine))
    await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
    assert stage.finished[-1].synchronized_transcript.strip() == REPLY


async def test_one_avatar_takes_the_place_of_another(stage: Any, engine: FakeEngine) -> None:
    """Also in the middle of speech: aclose, start, wait_for_join."""
    await stage.join()
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
    await stage.show(avatar)
    await stage.begin()
    for is_speaking in (False, True, False):
        if is_speaking:
            handle = stage.session.generate_reply(user_input="hello")
            await asyncio.sleep(1.0)
        await avatar.aclose()
        await avatar.aclose()
        avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
        await stage.show(avatar)
        await avatar.wait_for_join(timeout=10)
        if is_speaking:
            await asyncio.wait_for(handle, 10)
            assert stage.finished[-1].interrupted
        await asyncio.wait_for(stage.session.generate_reply(user_input="again"), 10)
        assert stage.finished[-1].synchronized_transcript.strip() == REPLY
        assert not stage.finished[-1].interrupted
    assert len(stage.room.local_participant.track_publications) == 2
    assert stage.room.isconnected()  # the agent itself was not removed


async def test_a_user_leaves_and_comes_back(stage: Any, engine: FakeEngine) -> None:
    user = await stage.join()
    await stage.show(talking_avatar.AvatarSession(photo="any", engine=engine))
    await stage.begin()
    await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
    handle = stage.session.generate_reply(user_input="hello")
    await asyncio.sleep(0.5)
    await user.leave()
    await asyncio.wait_for(handle, 10)
    user = await stage.join()
    await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
    await asyncio.sleep(0.5)
    assert user.num_frames > 10
    assert user.loudest > 5_000
    assert len(stage.finished) == 3


async def until(condition: Any) -> None:
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to be")


async def test_it_rests_while_nobody_is_there(stage: Any, engine: FakeEngine) -> None:
    """The meter stands still; whoever comes, and speech, wakes it."""
    user = await stage.join()
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine, sleep_after_s=0.3)
    await stage.show(avatar)
    await stage.begin()
    await user.leave()
    await until(lambda: avatar.session is None)
    held_s = avatar.usage().wall_s
    await asyncio.sleep(0.5)
    assert avatar.usage().wall_s == held_s > 0
    user = await stage.join("another")
    await until(lambda: avatar.session is not None)
    await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
    assert user.loudest > 5_000
    assert avatar.usage().wall_s > held_s + REPLY_S
    await user.leave()
    await until(lambda: avatar.session is None)
    await asyncio.wait_for(stage.session.generate_reply(user_input="anyone?"), 10)
    assert stage.finished[-1].synchronized_transcript.strip() == REPLY
    await until(lambda: avatar.session is None)
    assert avatar.stats().num_frames > 0


async def test_a_failed_start_gives_the_agent_its_own_voice_back(stage: Any) -> None:
    await stage.join()
    await stage.begin()
    before = stage.session.output.audio
    avatar = talking_avatar.AvatarSession(photo=b"not an image")
    with pytest.raises(talking_avatar.UnreadableImage):
        await avatar.start(stage.session, stage.room)
    assert stage.session.output.audio is before
    await asyncio.wait_for(stage.session.generate_reply(user_input="hello"), 10)
    assert stage.finished[-1].synchronized_transcript.strip() == REPLY
    assert avatar.gpu_hours() == 0.0


async def test_gpu_hours_are_at_hand(stage: Any) -> None:
    from talking_avatar.engine.base import Device

    gpu = Device("cuda:0", "H200", "denoise")
    engine = FakeEngine(width=64, height=96, devices=(gpu,))
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
    await stage.show(avatar)
    await asyncio.sleep(0.3)
    assert avatar.gpu_hours() > 0.2 / 3600
    await avatar.aclose()
    held = avatar.gpu_hours()
    await asyncio.sleep(0.1)
    assert avatar.gpu_hours() == held
    assert isinstance(avatar.usage(), talking_avatar.Usage)


async def test_an_avatar_starts_once(stage: Any, engine: FakeEngine) -> None:
    avatar = talking_avatar.AvatarSession(photo="any", engine=engine)
    await stage.show(avatar)
    with pytest.raises(talking_avatar.TalkingAvatarError, match="make a new one"):
        await avatar.start(stage.session, stage.room)
