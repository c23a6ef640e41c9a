"""Rates, positions, access: decisions without I/O."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talking_avatar_websocket._access import Access, allows_origin
from talking_avatar_websocket._limits import Buckets, Limits, Rate
from talking_avatar_websocket._positions import ASSUMED_LAG_S, PlayedPositions
from talking_avatar_websocket._rate import RateController, RateRange


class TestRate:
    def test_the_median_viewer_decides(self) -> None:
        for num_behind, falls in ((0, False), (2, False), (3, True), (5, True)):
            rate = RateController(RateRange(), 0.0)
            rate.update(num_viewers=5, num_behind=num_behind, now=3.0)
            assert (rate.kbps < 1_800) is falls

    def test_it_falls_by_steps_and_recovers_when_nobody_is_behind(self) -> None:
        rate = RateController(RateRange(min_kbps=300, max_kbps=1_800), 0.0)
        seen = [rate.update(num_viewers=1, num_behind=1, now=now) for now in range(20)]
        assert seen[:6] == [1_800, 1_800, 1_260, 1_260, 882, 882]
        assert seen[-1] == 300
        for now in range(20, 200):
            rate.update(num_viewers=1, num_behind=0, now=now)
        assert rate.kbps == 1_800

    def test_without_viewers_it_does_not_fall(self) -> None:
        rate = RateController(RateRange(), 0.0)
        assert rate.update(num_viewers=0, num_behind=0, now=5.0) == 1_800

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=50))
    def test_it_stays_in_its_range(self, seconds: list[tuple[int, int]]) -> None:
        rate = RateController(RateRange(min_kbps=200, max_kbps=900), 0.0)
        for now, (num_viewers, num_behind) in enumerate(seconds):
            kbps = rate.update(
                num_viewers=num_viewers, num_behind=min(num_viewers, num_behind), now=now
            )
            assert 200 <= kbps <= 900

    def test_a_range_must_make_sense(self) -> None:
        with pytest.raises(ValueError, match="must lie in"):
            RateRange(min_kbps=900, max_kbps=300)


class TestPositions:
    def test_nobody_knows_nothing(self) -> None:
        assert PlayedPositions().position(0.0, None) is None

    def test_the_speakers_word_counts(self) -> None:
        positions = PlayedPositions()
        positions.join(1)
        positions.join(2)
        positions.note_sent(5.0, 10.0)
        positions.report(1, 4.0, 10.0)
        positions.report(2, 4.9, 10.0)
        position = positions.position(10.1, 1)
        assert position is not None
        assert (position.seconds, position.source) == (4.0, "acknowledged")

    def test_without_a_speaker_the_furthest_counts(self) -> None:
        positions = PlayedPositions()
        for viewer, seconds in ((1, 1.0), (2, 4.5), (3, 2.0)):
            positions.join(viewer)
            positions.note_sent(5.0, 10.0)
            positions.report(viewer, seconds, 10.0)
        position = positions.position(10.1, None)
        assert position is not None
        assert position.seconds == 4.5

    def test_an_old_word_becomes_an_estimate(self) -> None:
        positions = PlayedPositions()
        positions.join(1)
        positions.note_sent(8.0, 10.0)
        positions.report(1, 4.0, 10.0)
        position = positions.position(11.0, 1)
        assert position is not None
        assert (position.seconds, position.source) == (5.0, "estimated")

    def test_a_silent_viewer_is_taken_to_lag(self) -> None:
        positions = PlayedPositions()
        positions.join(1)
        positions.note_sent(8.0, 10.0)
        position = positions.position(10.0, 1)
        assert position is not None
        assert position.seconds == pytest.approx(8.0 - ASSUMED_LAG_S)
        assert position.source == "estimated"

    def test_a_speaker_that_leaves_hands_over_to_the_others(self) -> None:
        positions = PlayedPositions()
        positions.join(1)
        positions.note_sent(8.0, 10.0)
        positions.report(1, 7.0, 10.0)
        positions.leave(1)
        positions.report(1, 7.5, 10.0)
        assert positions.position(10.0, 1) is None

    def test_a_word_corrects_an_estimate(self) -> None:
        positions = PlayedPositions()
        positions.join(1)
        positions.note_sent(8.0, 10.0)
        estimate = positions.position(10.0, 1)
        positions.report(1, 7.0, 10.1)
        word = positions.position(10.1, 1)
        assert estimate is not None
        assert word is not None
        assert word.seconds == 7.0 < estimate.seconds

    @settings(max_examples=200)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["sent", "report", "join", "leave", "ask"]),
                st.integers(1, 3),
                st.floats(-5, 50),
                st.floats(0, 1),
            ),
            max_size=40,
        )
    )
    def test_it_never_goes_back_behind_a_word_nor_passes_what_was_sent(
        self, steps: list[tuple[str, int, float, float]]
    ) -> None:
        positions = PlayedPositions()
        now, sent, before = 0.0, 0.0, 0.0
        for what, viewer, seconds, wait_s in steps:
            now += wait_s
            match what:
                case "sent":
                    sent = max(sent, seconds)
                    positions.note_sent(seconds, now)
                case "report":
                    positions.report(viewer, seconds, now)
                case "join":
                    positions.join(viewer)
                case "leave":
                    positions.leave(viewer)
                case "ask":
                    position = positions.position(now, viewer)
                    if position is not None:
                        assert before <= position.seconds <= sent
                        if position.source == "acknowledged":
                            before = position.seconds


class TestAccess:
    def test_tokens(self) -> None:
        access = Access("speaker-token", "viewer-token")
        assert access.check("speaker-token") == "speak"
        assert access.check("viewer-token") == "view"
        for wrong in (None, "", "speaker-toke", "speaker-token ", "\ud800", "Speaker-token"):
            assert access.check(wrong) is None
        assert "token" not in repr(access).replace("Access", "")

    def test_without_one_everybody_may_speak(self) -> None:
        assert Access().check(None) == "speak"
        assert Access().check("any") == "speak"
        assert Access("speaker-token").check(None) is None

    @pytest.mark.parametrize(
        ("token", "viewer_token"),
        [(None, "viewer-token"), ("short", None), ("same-token", "same-token")],
    )
    def test_senseless_ones_are_refused(self, token: str | None, viewer_token: str | None) -> None:
        with pytest.raises(ValueError, match="token"):
            Access(token, viewer_token)

    @pytest.mark.parametrize(
        ("origin", "host", "is_local", "is_allowed"),
        [
            (None, "127.0.0.1:8765", True, True),
            ("http://127.0.0.1:8765", "127.0.0.1:8765", True, True),
            ("http://localhost:8765", "localhost:8765", True, True),
            ("http://[::1]:8765", "[::1]:8765", True, True),
            ("http://localhost:8765", "127.0.0.1:8765", True, True),
            ("http://localhost:3000", "127.0.0.1:8765", True, False),
            ("http://evil.example", "127.0.0.1:8765", True, False),
            ("http://evil.example:8765", "evil.example:8765", True, False),  # DNS rebinding
            ("null", "127.0.0.1:8765", True, False),
            ("http://[", "127.0.0.1:8765", True, False),
            ("http://127.0.0.1:99999999", "127.0.0.1:8765", True, False),
            ("https://avatar.example", "avatar.example", False, True),
            ("https://avatar.example", "avatar.example:443", False, True),
            ("https://evil.example", "avatar.example", False, False),
            ("https://friend.example", "avatar.example", False, True),
            ("https://avatar.example.evil.example", "avatar.example", False, False),
        ],
    )
    def test_origins(self, origin: str | None, host: str, is_local: bool, is_allowed: bool) -> None:
        allowed = frozenset(["https://friend.example"])
        assert allows_origin(origin, host, allowed=allowed, is_local=is_local) is is_allowed


class TestBuckets:
    def test_a_burst_and_then_the_rate(self) -> None:
        buckets = Buckets({"text": Rate(per_s=2, burst=3)})
        assert [buckets.take("text", 0.0) for _ in range(4)] == [True, True, True, False]
        assert buckets.take("text", 0.5)
        assert not buckets.take("text", 0.5)
        assert buckets.take("audio", 0.5), "a group without a rate is not limited"

    def test_waiting_long_saves_no_more_than_a_burst(self) -> None:
        buckets = Buckets({"text": Rate(per_s=2, burst=3)})
        buckets.take("text", 0.0)
        assert sum(buckets.take("text", 1e6) for _ in range(10)) == 3

    def test_every_group_of_messages_has_a_rate(self) -> None:
        assert set(Limits().rates) >= {"any", "control", "audio", "photo", "bad", "dropped"}
