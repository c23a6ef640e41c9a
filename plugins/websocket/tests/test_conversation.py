"""Real sockets on loopback: what a client sees of a character."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest

from talking_avatar import AvatarSession, EngineFailed, MediaInfo, SeveralFaces
from talking_avatar.testing import FakeEngine, counted
from talking_avatar_websocket import (
    AvatarClient,
    AvatarServer,
    Features,
    Limits,
    Offering,
    Picture,
    Refused,
    Scene,
    Sound,
    VoiceFailed,
    WebsocketTransport,
    connect,
)
from talking_avatar_websocket._messages import (
    ErrorMessage,
    Floor,
    Flush,
    Interrupted,
    Limit,
    Paused,
    PhotoAccepted,
    PhotoRejected,
    Pong,
    Said,
    ServerMessage,
    Stats,
    StreamInfo,
    TurnFinished,
    TurnStarted,
)

M = TypeVar("M", bound=ServerMessage)
WAIT_S = 20.0


async def until(client: AvatarClient, kind: type[M], *, seen: list[Any] | None = None) -> M:
    """Take events until one of that kind comes."""
    async with asyncio.timeout(WAIT_S):
        async for event in client:
            if seen is not None:
                seen.append(event)
            if isinstance(event, kind):
                return event
    raise AssertionError(f"the connection ended before a {kind.__name__}")


async def pictures(client: AvatarClient, num: int, seen: list[Any] | None = None) -> list[Picture]:
    """Take events until so many pictures came."""
    got: list[Picture] = []
    async with asyncio.timeout(WAIT_S):
        async for event in client:
            if seen is not None:
                seen.append(event)
            if isinstance(event, Picture):
                got.append(event)
            if len(got) == num:
                break
    return got


async def emptied(server: AvatarServer) -> None:
    """Wait until nobody is in."""
    async with asyncio.timeout(WAIT_S):
        while server.num_viewers:
            await asyncio.sleep(0.01)


class ToneVoice:
    """A voice for tests: a tenth of a second for each character."""

    sample_rate = 16_000

    def __init__(self) -> None:
        self.num_closed = 0

    async def speak(self, text: str, language: str | None) -> AsyncIterator[bytes]:
        if text == "fail":
            raise VoiceFailed("no voice today")
        if text == "crash":
            raise ZeroDivisionError("a defect of the voice")
        try:
            for _ in text:
                yield counted(0.1).astype("<i2").tobytes()[:3_200]
                await asyncio.sleep(0)
        finally:
            self.num_closed += 1


class TestWatching:
    @pytest.mark.parametrize(
        ("video", "audio"), [("vp8", "opus"), ("h264", "pcm"), ("jpeg", "opus")]
    )
    async def test_picture_and_sound_share_a_timeline_without_gaps(
        self, stage: Any, video: Any, audio: Any
    ) -> None:
        async with (
            stage() as running,
            connect(running.url, video=(video,), audio=(audio,)) as client,
        ):
            seen: list[Any] = []
            frames = await pictures(client, 24, seen)
            assert client.stream is not None
            assert (client.stream.video_codec, client.stream.audio_codec) == (video, audio)
            assert frames[0].packet.is_key
            assert frames[0].image is not None
            assert frames[0].image.shape == (192, 128, 3)
            assert all(frame.image is not None for frame in frames)
            for before, after in pairwise(frames):
                assert after.packet.pts_us == before.packet.pts_us + before.packet.duration_us
                assert after.packet.sequence == before.packet.sequence + 1
            sounds = [event for event in seen if isinstance(event, Sound)]
            assert len(sounds) > 10
            for before, after in pairwise(sounds):
                assert after.packet.pts_us == before.end_us
            covered = (sounds[-1].end_us - sounds[0].packet.pts_us) / 1e6
            assert abs(covered - 24 / 24) < 0.1

    async def test_one_that_joins_later_gets_a_key_frame_and_the_time_of_day(
        self, stage: Any
    ) -> None:
        async with stage() as running, connect(running.url) as first:
            await pictures(first, 5)
            async with connect(running.url) as second:
                info = await until(second, StreamInfo)
                (frame,) = await pictures(second, 1)
                assert frame.packet.is_key
                assert 0 < info.pts_us <= frame.packet.pts_us
            after = await pictures(first, 24)
            for before, frame in pairwise(after):
                assert frame.packet.sequence == before.packet.sequence + 1, "others miss nothing"

    async def test_codecs_are_chosen_by_the_client_within_the_offer(self, stage: Any) -> None:
        offering = Offering(video=("vp8", "jpeg"), audio=("opus",))
        async with stage(offering=offering) as running:
            async with connect(running.url, video=("h264", "jpeg", "vp8")) as client:
                info = await until(client, StreamInfo)
                assert (info.video_codec, info.audio_codec) == ("jpeg", "opus")
            with pytest.raises(Refused) as refused:
                async with connect(running.url, audio=("pcm",)):
                    pass
            assert refused.value.code == "no_common_codec"

    async def test_the_clock_is_the_one_in_the_headers(self, stage: Any) -> None:
        async with stage() as running, connect(running.url) as client:
            await client.ping(5)
            pong = await until(client, Pong)
            assert pong.client_us == 5
            (frame,) = await pictures(client, 1)
            assert abs(frame.packet.sent_us - pong.server_us) < 5e6

    async def test_figures_come_once_a_second(self, stage: Any) -> None:
        async with stage() as running, connect(running.url) as client:
            stats = await until(client, Stats)
            assert stats.skew_ms == 0
            assert stats.num_viewers == 1
            assert stats.num_frames > 0
            assert stats.gpu_hours == 0
            assert stats.price is None
            assert stats.num_dropped == 0


class TestSpeaking:
    async def test_a_text_is_spoken_and_heard(self, stage: Any) -> None:
        async with stage(voice=ToneVoice()) as running, connect(running.url) as client:
            await client.say_text("abcde", request_id="r1")
            said = await until(client, Said)
            assert said.request_id == "r1"
            started = await until(client, TurnStarted)
            seen: list[Any] = []
            finished = await until(client, TurnFinished, seen=seen)
            assert started.turn_id == finished.turn_id == said.turn_id
            assert not finished.interrupted
            assert finished.played_s == pytest.approx(0.5, abs=0.01)
            assert finished.source == "acknowledged"
            assert finished.latency is not None
            spoken = [e for e in seen if isinstance(e, Sound) and e.packet.is_speaking]
            assert spoken
            assert {event.packet.turn_id for event in spoken} == {said.turn_id}
            loudest = max(int(np.abs(e.samples).max()) for e in spoken if e.samples is not None)
            assert loudest > 0

    async def test_what_cannot_be_spoken_is_an_error_and_nothing_more(self, stage: Any) -> None:
        async with stage(voice=ToneVoice()) as running, connect(running.url) as client:
            await client.say_text("fail")
            error = await until(client, ErrorMessage)
            assert (error.code, error.is_fatal) == ("voice_failed", False)
            assert error.message == "no voice today"
            await client.say_text("crash")
            error = await until(client, ErrorMessage)
            assert error.code == "voice_failed"
            assert "defect" not in error.message
            await client.say_text("x" * 1_001)
            assert (await until(client, ErrorMessage)).code == "text_too_long"
            await client.say_text("ab")
            assert not (await until(client, TurnFinished)).interrupted

    async def test_texts_wait_in_a_short_line(self, stage: Any) -> None:
        async with stage(voice=ToneVoice()) as running, connect(running.url) as client:
            running.conversation._max_texts = 1
            await running.session.pause()
            for _ in range(4):
                await client.say_text("a" * 400)  # 40 s: more than a turn takes ahead
            assert (await until(client, ErrorMessage)).code == "too_many_texts"

    async def test_the_microphone_is_heard_through_the_character(self, stage: Any) -> None:
        async with stage() as running, connect(running.url) as client:
            spoken = counted(1.0)
            await client.start_audio(codec="pcm", sample_rate=24_000)
            for start in range(0, len(spoken), 480):
                await client.send_audio(spoken[start : start + 480].astype("<i2").tobytes())
                if start % 4_800 == 0:
                    await asyncio.sleep(0.02)
            await client.stop_audio()
            finished = await until(client, TurnFinished)
            assert not finished.interrupted
            assert finished.played_s == pytest.approx(1.0, abs=0.01)

    async def test_a_server_may_have_no_ears_and_no_voice(self, stage: Any) -> None:
        async with stage(offering=Offering()) as running, connect(running.url) as client:
            assert client.welcome.features == Features()
            await client.say_text("hello")
            assert (await until(client, ErrorMessage)).code == "not_supported"
            await client.start_audio()
            assert (await until(client, ErrorMessage)).code == "not_supported"
            await client.send_photo(b"photo")
            assert (await until(client, PhotoRejected)).code == "not_accepted"

    async def test_pause_and_resume(self, stage: Any) -> None:
        async with stage(voice=ToneVoice()) as running, connect(running.url) as client:
            await client.say_text("abcdefghij")
            await until(client, TurnStarted)
            await client.pause()
            assert (await until(client, Paused)).is_paused
            await client.resume()
            assert not (await until(client, Paused)).is_paused
            finished = await until(client, TurnFinished)
            assert finished.played_s == pytest.approx(1.0, abs=0.01)
            assert not finished.interrupted


class TestInterrupting:
    """Case 36: a flush and its acknowledgement; what was sent but not played is not played."""

    async def test_the_position_is_the_one_that_the_client_acknowledged(self, stage: Any) -> None:
        options = {"acknowledges": False, "audio": ("pcm",)}
        async with stage() as running, connect(running.url, **options) as client:
            saying = asyncio.create_task(running.session.say(counted(5), sample_rate=24_000))
            started = await until(client, TurnStarted)
            await pictures(client, 12)
            await client.interrupt()
            flush = await until(client, Flush)
            heard_s = started.pts_us / 1e6 + 0.2
            await client.flushed(flush, heard_s)
            seen: list[Any] = []
            answer = await until(client, Interrupted, seen=seen)
            assert answer.source == "acknowledged"
            assert answer.played_s == pytest.approx(0.2, abs=0.001)
            result = await saying
            assert result.interrupted
            assert result.played_s == pytest.approx(0.2, abs=0.001)
            after = [e for e in seen if isinstance(e, Sound)]
            await pictures(client, 6, seen := [])
            after += [e for e in seen if isinstance(e, Sound)]
            assert after, "the timeline goes on"
            assert not any(event.packet.is_speaking for event in after)
            assert not any(e.samples.any() for e in after), "not a sample after the flush"

    async def test_a_client_that_says_nothing_is_estimated(self, stage: Any) -> None:
        async with stage() as running, connect(running.url, acknowledges=False) as client:
            saying = asyncio.create_task(running.session.say(counted(5), sample_rate=24_000))
            await until(client, TurnStarted)
            await pictures(client, 12)
            position = await running.session.interrupt()
            assert position.source == "estimated"
            assert 0 < position.seconds < 1.5
            assert (await saying).interrupted

    async def test_every_viewer_is_flushed(self, stage: Any) -> None:
        async with (
            stage(voice=ToneVoice()) as running,
            connect(running.url) as speaker,
            connect(running.url, role="viewer") as viewer,
        ):
            await speaker.say_text("abcdefghijklmnopqrst")
            await until(viewer, TurnStarted)
            await speaker.interrupt()
            flush = await until(speaker, Flush)
            assert (await until(viewer, Flush)).flush_id == flush.flush_id
            assert (await until(viewer, TurnFinished)).interrupted

    async def test_with_nothing_to_cut_it_is_answered_all_the_same(self, stage: Any) -> None:
        async with stage() as running, connect(running.url) as client:
            await client.interrupt()
            answer = await until(client, Interrupted)
            assert (answer.played_s, answer.source) == (0.0, "handed_out")

    async def test_the_voice_is_stopped_and_texts_that_wait_are_dropped(self, stage: Any) -> None:
        voice = ToneVoice()
        async with stage(voice=voice) as running, connect(running.url) as client:
            for _ in range(3):
                await client.say_text("abcdefghij")
            await until(client, TurnStarted)
            await client.interrupt()
            await until(client, Interrupted)
            await client.say_text("ab", request_id="last")
            while (await until(client, Said)).request_id != "last":
                pass
            finished = await until(client, TurnFinished)
            while finished.interrupted:
                finished = await until(client, TurnFinished)
            assert finished.played_s == pytest.approx(0.2, abs=0.01)


class TestFloor:
    """Case 38: a reload leaves nothing behind; two pages do not steal each other's sound."""

    async def test_the_first_speaks_and_the_second_is_told(self, stage: Any) -> None:
        async with (
            stage(voice=ToneVoice()) as running,
            connect(running.url) as first,
            connect(running.url) as second,
        ):
            assert (first.welcome.has_floor, second.welcome.has_floor) == (True, False)
            assert second.welcome.floor_taken
            await second.say_text("mine")
            assert (await until(second, ErrorMessage)).code == "not_speaker"
            await second.request_floor()
            floor = await until(second, Floor)
            assert (floor.has_floor, floor.reason) == (False, "refused")

    async def test_taking_over_ends_the_others_sound(self, stage: Any) -> None:
        async with (
            stage() as running,
            connect(running.url) as first,
            connect(running.url) as second,
        ):
            await first.start_audio(codec="pcm", sample_rate=24_000)
            await first.send_audio(counted(0.3).astype("<i2").tobytes())
            started = await until(second, TurnStarted)
            await second.request_floor(take_over=True)
            assert (await until(second, Floor)).reason == "granted"
            lost = await until(first, Floor)
            assert (lost.has_floor, lost.reason) == (False, "taken_over")
            await first.send_audio(counted(0.3).astype("<i2").tobytes())
            finished = await until(second, TurnFinished)
            assert finished.turn_id == started.turn_id
            assert finished.played_s == pytest.approx(0.3, abs=0.01), "not a sample after it"

    async def test_a_reload_leaves_nothing_behind(self, stage: Any) -> None:
        async with stage() as running:
            for _ in range(5):
                async with connect(running.url) as client:
                    assert client.welcome.has_floor
                    assert not any(
                        v.number != client.welcome.viewer for v in running.server.audience.viewers
                    )
                    await client.start_audio()
                    await pictures(client, 1)
                await emptied(running.server)
            assert running.server.audience.speaker is None
            assert not running.server._connections

    async def test_a_connection_that_breaks_frees_the_floor(self, stage: Any) -> None:
        async with stage() as running, connect(running.url, role="viewer") as viewer:
            async with connect(running.url) as client:
                await pictures(client, 1)
                client._socket.transport.abort()
                floor = await until(viewer, Floor)
                while floor.floor_taken:
                    floor = await until(viewer, Floor)
            async with connect(running.url) as again:
                assert again.welcome.has_floor

    async def test_release(self, stage: Any) -> None:
        async with (
            stage() as running,
            connect(running.url) as first,
            connect(running.url) as second,
        ):
            await first.release_floor()
            assert (await until(first, Floor)).reason == "released"
            assert not (await until(second, Floor)).floor_taken
            await second.request_floor()
            assert (await until(second, Floor)).reason == "granted"

    async def test_a_viewers_token_cannot_speak(self, stage: Any) -> None:
        tokens = {"token": "speakers-token", "viewer_token": "viewers-token"}
        async with (
            stage(**tokens) as running,
            connect(running.url, token="viewers-token") as client,
        ):
            assert (client.welcome.has_floor, client.welcome.may_speak) == (False, False)
            await client.request_floor(take_over=True)
            assert (await until(client, Floor)).reason == "not_allowed"


class TestPhotos:
    async def test_a_new_photo_is_a_new_stream(self, stage: Any) -> None:
        asked: list[tuple[int, int | None]] = []
        engine = FakeEngine(width=128, height=192)
        sessions: list[AvatarSession] = []

        def changing(server: AvatarServer) -> Callable[[bytes, int | None], Awaitable[Scene]]:
            async def change(data: bytes, face: int | None) -> Scene:
                asked.append((len(data), face))
                if data.startswith(b"two"):
                    raise SeveralFaces("two faces were found", boxes=())
                transport = WebsocketTransport(server)
                session = AvatarSession(
                    data, engine=engine, transport=transport, checks_capacity=False
                )
                await session.start()
                sessions.append(session)
                return Scene(session, transport)

            return change

        async with stage(engine=engine) as running, connect(running.url) as client:
            running.conversation._change_photo = changing(running.server)
            await pictures(client, 3)
            await client.send_photo(b"two" * 50)
            rejected = await until(client, PhotoRejected)
            assert (rejected.code, rejected.message) == ("several_faces", "two faces were found")
            await client.send_photo(b"one" * 50_000, face=1)
            await until(client, PhotoAccepted)
            assert asked == [(150, None), (150_000, 1)]
            while client.stream is None or client.stream.stream < 2:
                await until(client, StreamInfo)
            frames = await pictures(client, 5)
            assert {frame.packet.stream for frame in frames} == {2}
            assert frames[0].packet.is_key
            assert frames[0].image is not None
            await asyncio.gather(*(session.aclose() for session in sessions))


class TestLimits:
    async def test_one_viewer_too_many_is_told_when_to_come_back(self, stage: Any) -> None:
        async with stage(limits=Limits(max_viewers=1)) as running, connect(running.url):
            with pytest.raises(Refused) as refused:
                async with connect(running.url):
                    pass
            assert refused.value.code == "capacity"
            assert refused.value.retry_after_s == 10

    async def test_the_end_of_a_connection_is_announced(self, stage: Any) -> None:
        limits = Limits(max_connection_s=0.5)
        async with stage(limits=limits) as running, connect(running.url) as client:
            assert (await until(client, Limit)).kind == "connection"
            error = await until(client, ErrorMessage)
            assert (error.code, error.is_fatal) == ("limit_reached", True)
            async for _ in client:
                pass
            assert client._socket.close_code == 4410

    async def test_the_end_of_the_server_is_announced(self, stage: Any) -> None:
        async with stage() as running, connect(running.url) as client:
            await pictures(client, 1)
            closing = asyncio.create_task(running.server.aclose())
            assert (await until(client, ErrorMessage)).code == "going_away"
            await closing
            assert running.server.num_viewers == 0


class TestSessions:
    async def test_a_transport_alone_is_enough(self) -> None:
        transport = WebsocketTransport(port=0)
        engine = FakeEngine(width=128, height=192)
        session = AvatarSession("any", engine=engine, transport=transport)
        async with session, connect(transport.server.socket_url) as client:
            await pictures(client, 2)
            saying = asyncio.create_task(session.say(counted(0.2), sample_rate=24_000))
            await until(client, TurnStarted)
            async with asyncio.timeout(WAIT_S):
                while not saying.done():
                    await pictures(client, 1)
            result = await saying
            assert result.source == "acknowledged"
            transport.announce(result)
            assert (await until(client, TurnFinished)).played_s == pytest.approx(0.2, abs=0.01)

    async def test_a_session_that_fails_is_told(self) -> None:
        def fails(number: int) -> float:
            if number > 40:
                raise RuntimeError("a cosmic ray")
            return 0.01

        from talking_avatar_websocket import Conversation

        async with AvatarServer(port=0) as server:
            transport = WebsocketTransport(server)
            engine = FakeEngine(step_s=fails, width=128, height=192)
            async with AvatarSession("any", engine=engine, transport=transport) as session:
                conversation = Conversation(server, Scene(session, transport))
                async with connect(server.socket_url) as client:
                    running = asyncio.create_task(conversation.run())
                    with pytest.raises(EngineFailed, match="cosmic ray"):
                        await running
                    server.fail("the character has failed")
                    assert (await until(client, ErrorMessage)).code == "session_failed"

    async def test_a_port_that_is_taken_is_said_so(self) -> None:
        async with AvatarServer(port=0) as server:
            port = int(server.url.rsplit(":", 1)[1].strip("/"))
            with pytest.raises(OSError, match="address already in use"):
                await AvatarServer(port=port).start()

    async def test_others_are_let_in_by_token_only(self) -> None:
        with pytest.raises(ValueError, match="token"):
            AvatarServer(host="0.0.0.0")

    async def test_a_server_that_never_started_closes(self) -> None:
        await AvatarServer(port=0).aclose()
        media = MediaInfo(
            width=16, height=16, pixel_format="i420", fps=24, sample_rate=24_000, clock="live"
        )
        with pytest.raises(RuntimeError, match="start the server first"):
            await WebsocketTransport(AvatarServer(port=0)).open(media)
