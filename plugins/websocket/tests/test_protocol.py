"""The state machine of a connection: what any client may send it, at any time."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talking_avatar_websocket._access import Access
from talking_avatar_websocket._limits import Limits, Rate
from talking_avatar_websocket._messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    AudioStart,
    AudioStop,
    ErrorMessage,
    Hello,
    Interrupt,
    Limit,
    PhotoRejected,
    Played,
    Pong,
    SayText,
    Welcome,
    parse_client,
    parse_server,
)
from talking_avatar_websocket._packets import Kind, UploadPacket
from talking_avatar_websocket._protocol import (
    CLOSE_CODES,
    HelloReceived,
    MicrophoneSound,
    ServerProtocol,
    UploadedPhoto,
)

MARK = "x7Qs3cr3tMark"
TOKEN = "a-token-of-sixteen"


def opened(limits: Limits | None = None, *, has_floor: bool = True) -> ServerProtocol:
    """Give a protocol whose client was let in at time 0."""
    protocol = ServerProtocol(limits or Limits(), Access(), now=0.0)
    (event,) = protocol.receive(Hello().to_text(), 0.0)
    assert isinstance(event, HelloReceived)
    protocol.accept()
    protocol.has_floor = has_floor
    return protocol


def errors(protocol: ServerProtocol) -> list[str]:
    return [m.code for m in protocol.take_outgoing() if isinstance(m, ErrorMessage)]


def photo(piece: bytes, sequence: int) -> bytes:
    packet = UploadPacket(kind=Kind.PHOTO, codec=None, sequence=sequence, payload=piece)
    return packet.to_bytes()


def sound(payload: bytes, codec: str = "pcm") -> bytes:
    packet = UploadPacket(
        kind=Kind.MICROPHONE,
        codec=codec,  # type: ignore[arg-type]
        sequence=0,
        payload=payload,
    )
    return packet.to_bytes()


class TestHello:
    @pytest.mark.parametrize(
        ("message", "code"),
        [
            (b"\x01\x01\x00\x24", "bad_hello"),
            ("", "bad_hello"),
            ("{", "bad_hello"),
            ("[1]", "bad_hello"),
            ('"hello"', "bad_hello"),
            ('{"type": 5}', "bad_hello"),
            ('{"type": "ping", "client_us": 1}', "bad_hello"),
            ('{"type": "unknown"}', "bad_hello"),
            ('{"type": "hello", "version": 0}', "bad_hello"),
            ('{"type": "hello", "version": "1"}', "bad_hello"),
            ('{"type": "hello", "video": "vp8"}', "bad_hello"),
            ('{"type": "hello", "role": "king"}', "bad_hello"),
            ('{"type": "hello"}', "unauthorized"),
            ('{"type": "hello", "token": ""}', "unauthorized"),
            ('{"type": "hello", "token": "a-token-of-sixteem"}', "unauthorized"),
            ('{"type": "hello", "token": "\\ud800"}', "bad_hello"),
        ],
    )
    def test_a_bad_one_is_refused(self, message: str | bytes, code: str) -> None:
        protocol = ServerProtocol(Limits(), Access(TOKEN), now=0.0)
        assert protocol.receive(message, 0.1) == []
        assert protocol.closing == code
        (error,) = protocol.take_outgoing()
        assert isinstance(error, ErrorMessage)
        assert (error.code, error.is_fatal) == (code, True)
        assert protocol.receive(Hello(token=TOKEN).to_text(), 0.2) == []

    def test_permission_follows_the_token(self) -> None:
        for token, permission in ((TOKEN, "speak"), ("only-for-viewers", "view")):
            protocol = ServerProtocol(Limits(), Access(TOKEN, "only-for-viewers"), now=0.0)
            (event,) = protocol.receive(Hello(token=token).to_text(), 0.0)
            assert isinstance(event, HelloReceived)
            assert event.permission == permission == protocol.permission

    def test_a_later_version_and_unknown_fields_are_welcome(self) -> None:
        protocol = ServerProtocol(Limits(), Access(), now=0.0)
        text = json.dumps({"type": "hello", "version": 7, "video": ["av2"], "mood": {"a": [1]}})
        (event,) = protocol.receive(text, 0.0)
        assert isinstance(event, HelloReceived)
        assert event.hello.video == ["av2"]

    def test_nothing_is_understood_while_it_waits(self) -> None:
        protocol = ServerProtocol(Limits(), Access(), now=0.0)
        protocol.receive(Hello().to_text(), 0.0)
        assert protocol.receive(Interrupt().to_text(), 0.0) == []
        assert protocol.receive(Hello().to_text(), 0.0) == []
        assert protocol.closing is None

    def test_its_deadline_closes(self) -> None:
        protocol = ServerProtocol(Limits(hello_timeout_s=5), Access(), now=100.0)
        assert protocol.next_deadline() == 105.0
        protocol.tick(104.9)
        assert protocol.closing is None
        protocol.tick(105.0)
        assert protocol.closing == "bad_hello"

    def test_twice_is_a_mistake(self) -> None:
        protocol = opened()
        assert protocol.receive(Hello().to_text(), 1.0) == []
        assert errors(protocol) == ["bad_message"]


class TestMessages:
    def test_types_are_unique_and_survive_a_round_trip(self) -> None:
        samples: dict[str, dict[str, Any]] = {
            "ping": {"client_us": -5},
            "played": {"stream": 1, "pts_us": 5},
            "flushed": {"stream": 1, "pts_us": 5, "flush_id": 2},
            "say_text": {"text": "Guten Tag, Straße 😀", "language": "de-DE"},
            "photo_start": {"num_bytes": 7},
        }
        seen = set()
        for model in CLIENT_MESSAGES:
            kind = model.model_fields["type"].default
            seen.add(kind)
            message = model.model_validate(samples.get(kind, {}))
            assert parse_client(message.to_text()) == message
        assert len(seen) == len(CLIENT_MESSAGES)
        assert len({m.model_fields["type"].default for m in SERVER_MESSAGES}) == len(
            SERVER_MESSAGES
        )

    def test_a_server_message_survives_a_round_trip(self) -> None:
        message = ErrorMessage(code="capacity", message="full", retry_after_s=1.5)
        assert parse_server(message.to_text()) == message
        assert parse_server('{"type": "from the future", "x": 1}') is None

    def test_unknown_types_are_ignored_and_cost_nothing(self) -> None:
        protocol = opened()
        for n in range(100):
            assert protocol.receive(f'{{"type": "t{n}", "a": [1, {{}}]}}', n * 0.1) == []
        assert protocol.take_outgoing() == []
        assert protocol.closing is None

    @pytest.mark.parametrize(
        "text",
        [
            f'{{"type": "say_text", "text": 5, "m": "{MARK}"}}',
            f'{{"type": "say_text", "text": "a", "language": "{MARK}-{MARK}"}}',
            f'{{"type": "played", "stream": "{MARK}", "pts_us": 0}}',
            f'{{"type": "played", "stream": -1, "pts_us": 0, "{MARK}": 1}}',
            '{"type": "ping", "client_us": 1e400}',
            '{"type": "ping", "client_us": 99999999999999999999999999999999}',
            '{"type": "ping", "client_us": NaN}',
            '{"type": "ping", "client_us": true}',
            '{"type": "audio_start", "sample_rate": 1}',
            f'{{"type": "audio_start", "codec": "{MARK}"}}',
            '{"type": "photo_start", "num_bytes": 0}',
            f'{MARK}"',
            "[" * 60_000,
            '{"type": "ping", "client_us": ' + "[" * 30_000,
        ],
    )
    def test_a_wrong_one_is_named_and_never_repeated(self, text: str) -> None:
        protocol = opened()
        assert protocol.receive(text, 1.0) == []
        (error,) = protocol.take_outgoing()
        assert isinstance(error, ErrorMessage)
        assert error.code == "bad_message"
        assert MARK not in error.message
        assert len(error.message) < 200

    def test_too_many_wrong_ones_close(self) -> None:
        limits = Limits()
        protocol = opened(limits)
        for _ in range(limits.rates["bad"].burst):
            protocol.receive("{", 1.0)
            assert protocol.closing is None
        protocol.receive("{", 1.0)
        assert protocol.closing == "bad_message"
        assert CLOSE_CODES[protocol.closing] == 4422

    def test_ping_is_answered_with_the_clock(self) -> None:
        protocol = opened()
        assert protocol.receive('{"type": "ping", "client_us": 77}', 12.5) == []
        assert protocol.take_outgoing() == [Pong(client_us=77, server_us=12_500_000)]

    def test_reports_come_out(self) -> None:
        protocol = opened(has_floor=False)
        message = Played(stream=3, pts_us=1_000)
        assert protocol.receive(message.to_text(), 1.0) == [message]


class TestFloor:
    @pytest.mark.parametrize(
        "text",
        [
            '{"type": "interrupt"}',
            '{"type": "pause"}',
            '{"type": "resume"}',
            '{"type": "say_text", "text": "hello"}',
            '{"type": "audio_start"}',
            '{"type": "audio_stop"}',
            '{"type": "photo_start", "num_bytes": 5}',
            '{"type": "release_floor"}',
        ],
    )
    def test_what_needs_it_is_refused_without(self, text: str) -> None:
        protocol = opened(has_floor=False)
        assert protocol.receive(text, 1.0) == []
        assert errors(protocol) == ["not_speaker"]
        protocol.has_floor = True
        protocol.receive(text, 1.0)
        assert errors(protocol) == []

    def test_losing_it_ends_sound_and_upload(self) -> None:
        protocol = opened()
        protocol.receive('{"type": "audio_start"}', 1.0)
        protocol.receive('{"type": "photo_start", "num_bytes": 4}', 1.0)
        assert list(protocol.lose_floor()) == [AudioStop()]
        assert list(protocol.lose_floor()) == []
        assert protocol.receive(sound(b"ab"), 1.1) == []
        assert protocol.receive(photo(b"abcd", 0), 1.1) == []
        assert protocol.take_outgoing() == []


class TestMicrophone:
    def test_sound_comes_out_between_start_and_stop(self) -> None:
        protocol = opened()
        assert protocol.receive(sound(b"ab"), 1.0) == []
        started = AudioStart(codec="pcm", sample_rate=16_000)
        assert protocol.receive(started.to_text(), 1.0) == [started]
        (event,) = protocol.receive(sound(b"abcd"), 1.1)
        assert isinstance(event, MicrophoneSound)
        assert (event.codec, bytes(event.payload)) == ("pcm", b"abcd")
        assert protocol.receive('{"type": "audio_stop"}', 1.2) == [AudioStop()]
        assert protocol.receive('{"type": "audio_stop"}', 1.2) == []
        assert protocol.take_outgoing() == []

    @pytest.mark.parametrize("data", [sound(b"abc"), sound(b"ab", "opus"), b"\x10\x05\x00\x08ab"])
    def test_wrong_sound_is_a_mistake(self, data: bytes) -> None:
        protocol = opened()
        protocol.receive('{"type": "audio_start"}', 1.0)
        assert protocol.receive(data, 1.1) == []
        assert errors(protocol) == ["bad_message"]

    def test_a_second_start_ends_the_first(self) -> None:
        protocol = opened()
        protocol.receive('{"type": "audio_start"}', 1.0)
        assert protocol.receive('{"type": "audio_start"}', 2.0) == [AudioStop(), AudioStart()]

    def test_its_end_is_announced_before_it_acts(self) -> None:
        protocol = opened(Limits(max_input_s=30))
        protocol.receive('{"type": "audio_start"}', 100.0)
        assert protocol.next_deadline() == 120.0
        assert protocol.tick(120.0) == []
        assert protocol.take_outgoing() == [Limit(kind="input", in_s=10.0)]
        assert protocol.next_deadline() == 130.0
        assert protocol.tick(130.0) == [AudioStop()]
        assert protocol.next_deadline() is None


class TestPhoto:
    def test_pieces_become_one_file(self) -> None:
        protocol = opened()
        protocol.receive('{"type": "photo_start", "num_bytes": 6, "face": 1}', 1.0)
        assert protocol.receive(photo(b"abcd", 0), 1.1) == []
        assert protocol.receive(photo(b"ef", 1), 1.2) == [UploadedPhoto(b"abcdef", 1)]
        assert protocol.receive(photo(b"gh", 2), 1.3) == []
        assert protocol.take_outgoing() == []

    @pytest.mark.parametrize(
        ("pieces", "code"),
        [
            ([(b"abcd", 1)], "incomplete"),
            ([(b"abcd", 0), (b"e", 0)], "incomplete"),
            ([(b"abcdefg", 0)], "incomplete"),
        ],
    )
    def test_a_wrong_upload_is_rejected(self, pieces: list[tuple[bytes, int]], code: str) -> None:
        protocol = opened()
        protocol.receive('{"type": "photo_start", "num_bytes": 6}', 1.0)
        for piece, sequence in pieces:
            assert protocol.receive(photo(piece, sequence), 1.1) == []
        (rejected,) = protocol.take_outgoing()
        assert isinstance(rejected, PhotoRejected)
        assert rejected.code == code

    def test_a_large_one_is_rejected_before_it_comes(self) -> None:
        protocol = opened(Limits(max_photo_bytes=1024))
        protocol.receive('{"type": "photo_start", "num_bytes": 1025}', 1.0)
        (rejected,) = protocol.take_outgoing()
        assert isinstance(rejected, PhotoRejected)
        assert rejected.code == "too_large"

    def test_a_slow_one_is_given_up(self) -> None:
        protocol = opened(Limits(photo_timeout_s=60))
        protocol.receive('{"type": "photo_start", "num_bytes": 6}', 10.0)
        assert protocol.next_deadline() == 70.0
        protocol.tick(70.0)
        (rejected,) = protocol.take_outgoing()
        assert isinstance(rejected, PhotoRejected)
        assert rejected.code == "incomplete"
        assert protocol.next_deadline() is None


class TestRates:
    def test_those_beyond_are_dropped_and_told_of_once_a_second(self) -> None:
        protocol = opened()
        text = SayText(text="hello").to_text()
        got = [len(protocol.receive(text, 10.0 + n * 0.01)) for n in range(20)]
        assert sum(got) == 5
        assert errors(protocol) == ["rate_limited"]
        assert len(protocol.receive(text, 15.0)) == 1

    def test_a_flood_closes(self) -> None:
        limits = Limits(rates={**Limits().rates, "any": Rate(per_s=1, burst=10)})
        protocol = opened(limits)
        num_sent = 0
        while protocol.closing is None and num_sent < 2_000:
            protocol.receive('{"type": "ping", "client_us": 1}', 1.0)
            num_sent += 1
        assert protocol.closing == "rate_limited"
        assert num_sent <= 10 + limits.rates["dropped"].burst + 1
        assert len(protocol.take_outgoing()) <= 12


class TestConnectionEnd:
    def test_it_is_announced_twice_and_comes(self) -> None:
        protocol = opened(Limits(max_connection_s=100))
        told = []
        while protocol.closing is None:
            deadline = protocol.next_deadline()
            assert deadline is not None
            protocol.tick(deadline)
            told += [m.in_s for m in protocol.take_outgoing() if isinstance(m, Limit)]
        assert told == [60.0, 10.0]
        assert protocol.closing == "limit_reached"

    def test_a_short_one_is_announced_once(self) -> None:
        protocol = opened(Limits(max_connection_s=30))
        protocol.tick(0.0)
        protocol.tick(20.0)
        messages = protocol.take_outgoing()
        assert [m.in_s for m in messages if isinstance(m, Limit)] == [30.0, 10.0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
known_types = st.sampled_from([m.model_fields["type"].default for m in CLIENT_MESSAGES])
field_names = st.sampled_from(sorted({name for m in CLIENT_MESSAGES for name in m.model_fields}))


@st.composite
def almost_messages(draw: st.DrawFn) -> str:
    """Known types with fields of any value."""
    fields = draw(st.dictionaries(field_names, json_values, max_size=5))
    return json.dumps({**fields, "type": draw(known_types)})


@st.composite
def almost_packets(draw: st.DrawFn) -> bytes:
    """Headers of any value, cut anywhere."""
    header = struct.pack(
        ">BBBBI",
        draw(st.sampled_from([0, 1, 2, 16, 17, 18, 255])),
        draw(st.sampled_from([0, 1, 16, 17, 255])),
        draw(st.integers(0, 255)),
        draw(st.sampled_from([0, 7, 8, 9, 36, 255])),
        draw(st.integers(0, 2**32 - 1)),
    )
    data = header + draw(st.binary(max_size=64))
    return data[: draw(st.integers(0, len(data)))]


anything = st.one_of(
    st.text(max_size=200), st.binary(max_size=200), almost_messages(), almost_packets()
)


@settings(max_examples=200, deadline=None)
@given(st.lists(anything, max_size=20), st.booleans())
def test_no_client_can_break_it(messages: list[str | bytes], has_floor: bool) -> None:
    protocol = opened(has_floor=has_floor)
    now = 0.0
    for message in messages:
        now += 0.02
        for event in protocol.receive(message, now):
            assert not isinstance(event, HelloReceived)
        protocol.tick(now)
    outgoing = protocol.take_outgoing()
    assert len(outgoing) <= 2 * len(messages) + 1
    for answer in outgoing:
        assert not isinstance(answer, Welcome)
        assert parse_server(answer.to_text()) == answer


@settings(max_examples=200, deadline=None)
@given(anything)
def test_before_hello_anything_else_closes(message: str | bytes) -> None:
    protocol = ServerProtocol(Limits(), Access(TOKEN), now=0.0)
    assert protocol.receive(message, 0.1) == []
    assert protocol.closing in ("bad_hello", "unauthorized")


@settings(max_examples=200, deadline=None)
@given(almost_messages())
def test_what_was_sent_is_never_repeated(text: str) -> None:
    fields = json.loads(text)
    marked = json.dumps({**fields, MARK: MARK, "language": MARK, "codec": MARK, "role": MARK})
    protocol = opened()
    protocol.receive(marked, 1.0)
    for answer in protocol.take_outgoing():
        assert MARK not in answer.to_text()
