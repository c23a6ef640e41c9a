"""The parts between sockets and sessions, each for itself."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from talking_avatar import Frame, MediaInfo, Transport, TransportClosed
from talking_avatar.testing import TRANSPORT_CHECKS
from talking_avatar_websocket import EspeakVoice, Voice, VoiceFailed, WebsocketTransport, connect
from talking_avatar_websocket._access import Access
from talking_avatar_websocket._broadcast import Broadcast
from talking_avatar_websocket._events import (
    MAX_EVENTS,
    MAX_SOUND_SAMPLES,
    EventQueue,
    PauseAsked,
    SpeechCame,
    SpeechEnded,
)
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import Feedback, Flushed
from talking_avatar_websocket._outbox import Outbox, Parcel
from talking_avatar_websocket._packets import MediaPacket, VideoCodec
from talking_avatar_websocket._protocol import ServerProtocol
from talking_avatar_websocket._rate import RateRange
from talking_avatar_websocket._showing import Showing
from talking_avatar_websocket._viewer import Viewer

MEDIA = MediaInfo(
    width=128, height=192, pixel_format="i420", fps=24, sample_rate=24_000, clock="live"
)


def frame(index: int, *, loud: bool = False) -> Frame:
    image = np.full((288, 128), 60 + index, np.uint8)
    audio = np.full(1_000, 9_000 if loud else 0, np.int16)
    return Frame(index, image, audio, index / 24, turn_id=2 if loud else None, speaking=loud)


class TestConformance:
    @pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
    async def test_it_is_a_transport(self, check: Callable[..., Any]) -> None:
        await check(lambda: WebsocketTransport(port=0))

    @pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
    async def test_it_is_a_transport_while_somebody_watches(
        self, check: Callable[..., Any]
    ) -> None:
        watching: list[asyncio.Task[None]] = []

        class Watched(WebsocketTransport):
            async def open(self, media: MediaInfo) -> None:
                await super().open(media)
                watching.append(asyncio.create_task(self._watch()))
                async with asyncio.timeout(10):
                    while not self.server.num_viewers:
                        await asyncio.sleep(0.005)

            async def _watch(self) -> None:
                async with connect(self.server.socket_url, decodes=False) as client:
                    async for _ in client:
                        pass

        def make() -> Transport:
            return Watched(port=0)

        await check(make)
        async with asyncio.timeout(10):
            await asyncio.gather(*watching)

    async def test_one_transport_serves_one_session(self) -> None:
        transport = WebsocketTransport(port=0)
        await transport.open(MEDIA)
        with pytest.raises(TransportClosed):
            await transport.open(MEDIA)
        await transport.aclose()
        with pytest.raises(TransportClosed):
            await transport.send(frame(0))
        with pytest.raises(TransportClosed):
            await transport.open(MEDIA)


class TestBroadcast:
    async def test_sound_does_not_wait_for_picture_and_pictures_too_many_are_left_out(self) -> None:
        got: list[MediaPacket] = []

        def deliver(codec: str, parcel: Parcel) -> None:
            packet = MediaPacket.from_bytes(parcel.data)
            assert packet is not None
            got.append(packet)

        broadcast = Broadcast(1, MEDIA, Limits(), 500, deliver)
        jobs = []
        for index in range(24):  # a second at once: more than the encoder can take
            jobs += broadcast.offer(frame(index), ["vp8"], ["pcm"])
        await asyncio.wait(jobs)
        sounds = [packet for packet in got if packet.codec == "pcm"]
        pictures = [packet for packet in got if packet.codec == "vp8"]
        assert len(sounds) == 24
        assert broadcast.num_left_out == 22
        assert [packet.sequence for packet in pictures] == [0, 1]
        assert pictures[0].is_key
        await broadcast.aclose()
        await broadcast.aclose()
        assert broadcast.offer(frame(24), ["vp8"], ["pcm"]) == []

    async def test_flushed_sound_is_not_delivered(self) -> None:
        got: list[bytes] = []
        broadcast = Broadcast(1, MEDIA, Limits(), 500, lambda _, p: got.append(p.data[36:]))
        jobs = broadcast.offer(frame(0, loud=True), [], ["pcm"])
        broadcast.flush_sound()
        jobs += broadcast.offer(frame(1), [], ["pcm"])
        await asyncio.wait(jobs)
        assert got == [bytes(2_000)]
        await broadcast.aclose()

    async def test_key_frames_that_are_asked_for_keep_their_distance(self) -> None:
        keys: list[bool] = []
        limits = Limits(min_key_interval_s=0.2)
        broadcast = Broadcast(1, MEDIA, limits, 500, lambda _, p: keys.append(p.is_key))
        loop = asyncio.get_running_loop()
        started = loop.time()
        for index in range(20):
            broadcast.request_key("vp8")
            await asyncio.wait(broadcast.offer(frame(index), ["vp8"], []))
            await asyncio.sleep(0.02)
        assert 2 <= sum(keys) <= (loop.time() - started) / 0.2 + 1
        await broadcast.aclose()

    async def test_another_rate_brings_a_key_frame(self) -> None:
        keys: list[bool] = []
        broadcast = Broadcast(1, MEDIA, Limits(), 500, lambda _, p: keys.append(p.is_key))
        for index in range(4):
            if index == 2:
                broadcast.set_kbps("vp8", 300)
            await asyncio.wait(broadcast.offer(frame(index), ["vp8"], []))
        assert keys == [True, False, True, False]
        await broadcast.aclose()

    async def test_an_encoder_that_fails_ends_the_transport(self) -> None:
        transport = WebsocketTransport(port=0)
        await transport.open(MEDIA)
        async with connect(transport.server.socket_url):
            broken = Frame(
                0, np.zeros((3, 3), np.uint8), np.zeros(1_000, np.int16), 0.0, None, False
            )
            await transport.send(broken)
            with pytest.raises(TransportClosed, match="encoder failed"):
                for _ in range(200):
                    await asyncio.sleep(0.01)
                    await transport.send(broken)
        await transport.aclose()


class TestEvents:
    async def test_sound_that_nobody_takes_is_bounded(self) -> None:
        queue = EventQueue()
        piece = SpeechCame(1, np.zeros(4_800, np.int16))
        taken = sum(queue.put(piece) for _ in range(100))
        assert taken == MAX_SOUND_SAMPLES // 4_800
        assert queue.num_dropped_samples == (100 - taken) * 4_800
        await anext(queue)
        assert queue.put(piece)

    async def test_wishes_that_nobody_takes_are_refused_but_an_end_is_kept(self) -> None:
        queue = EventQueue()
        assert all(queue.put(PauseAsked(1)) for _ in range(MAX_EVENTS))
        assert not queue.put(PauseAsked(1))
        assert queue.put(SpeechEnded(1))
        queue.close()
        events = [event async for event in queue]
        assert len(events) == MAX_EVENTS + 1
        assert events[-1] == SpeechEnded(1)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
class TestEspeak:
    async def test_it_speaks(self) -> None:
        voice = EspeakVoice()
        assert isinstance(voice, Voice)
        pieces = [piece async for piece in voice.speak("Good morning.", None)]
        samples = np.frombuffer(b"".join(pieces), np.int16)
        assert 0.5 < len(samples) / voice.sample_rate < 3
        assert np.abs(samples).max() > 3_000

    async def test_other_languages_and_odd_texts(self) -> None:
        voice = EspeakVoice()
        for text, language in (
            ("Guten Morgen", "de-DE"),
            ("--help -w x", None),
            ("😀 \x00 ok", "en"),
        ):
            assert [piece async for piece in voice.speak(text, language)]

    async def test_a_language_without_a_voice_is_said_so(self) -> None:
        with pytest.raises(VoiceFailed) as failure:
            async for _ in EspeakVoice().speak("secret words", "xx-XX"):
                pass
        assert "secret" not in str(failure.value)

    async def test_stopping_early_leaves_no_process(self) -> None:
        import psutil

        speech = EspeakVoice().speak("word " * 180, None)
        await anext(speech)
        await speech.aclose()  # type: ignore[attr-defined]
        names = [child.name() for child in psutil.Process().children(recursive=True)]
        assert "espeak-ng" not in names

    async def test_senseless_speeds_are_refused(self) -> None:
        with pytest.raises(ValueError, match="words_per_minute"):
            EspeakVoice(words_per_minute=5)


class TestShowing:
    async def test_the_encoder_follows_its_median_viewer(self) -> None:
        now = 0.0
        viewers: dict[int, Viewer] = {}
        for number in (1, 2, 3):
            protocol = ServerProtocol(Limits(), Access(), now=0.0)
            codec: VideoCodec = "vp8"
            viewers[number] = Viewer(number, protocol, Outbox(Limits()), codec, "pcm", lambda: None)
        showing = Showing(1, MEDIA, viewers, rates=RateRange(), limits=Limits(), now=lambda: now)
        lane = showing._broadcast._lane("vp8")
        showing.tick()
        viewers[1].outbox.num_dropped_video += 5
        now = 3.0
        showing.tick()
        assert lane.kbps == 1_800, "one of three is behind: it loses frames, the others nothing"
        viewers[1].outbox.num_dropped_video += 5
        viewers[2].feedback = Feedback(decode_queue=20)
        now = 6.0
        showing.tick()
        assert lane.kbps == 1_260, "two of three are behind"
        viewers[2].feedback = Feedback(decode_queue=0)
        for second in range(7, 30):
            now = float(second)
            showing.tick()
        assert lane.kbps > 1_260
        await showing.aclose()

    async def test_a_flush_waits_for_the_speaker_and_no_longer_than_its_time(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = ServerProtocol(Limits(), Access(), now=0.0)
        viewer = Viewer(1, protocol, Outbox(Limits()), "vp8", "pcm", lambda: None)
        limits = Limits(flush_timeout_s=0.3)
        showing = Showing(1, MEDIA, {1: viewer}, rates=RateRange(), limits=limits, now=loop.time)
        showing.join(viewer)
        await showing.offer(frame(0))
        flushing = asyncio.create_task(showing.flush(7, viewer))
        await asyncio.sleep(0)
        showing.report(viewer, Flushed(flush_id=6, stream=1, pts_us=1))
        showing.report(viewer, Flushed(flush_id=7, stream=2, pts_us=1))
        await asyncio.sleep(0.01)
        assert not flushing.done(), "another flush, or another stream, is not this one"
        showing.report(viewer, Flushed(flush_id=7, stream=1, pts_us=20_000))
        await asyncio.wait([flushing], timeout=0.2)
        assert flushing.done()
        position = showing.position(viewer)
        assert position is not None
        assert (position.seconds, position.source) == (0.02, "acknowledged")
        started = loop.time()
        await showing.flush(8, viewer)
        assert loop.time() - started >= 0.29
        await showing.aclose()
