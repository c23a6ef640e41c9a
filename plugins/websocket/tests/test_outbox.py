"""What a slow viewer loses, and what it never does."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._outbox import Outbox, Parcel

LIMITS = Limits(max_video_lag_s=0.5, max_audio_lag_s=2.0, max_queue_bytes=64 * 1024)


def picture(name: str, *, is_key: bool = False, size: int = 100) -> Parcel:
    return Parcel(name.encode().ljust(size, b"."), is_video=True, is_key=is_key)


def sound(name: str, size: int = 50) -> Parcel:
    return Parcel(name.encode().ljust(size, b"."), is_video=False, is_key=True)


def taken(outbox: Outbox, now: float) -> list[str]:
    names = []
    while (message := outbox.take(now)) is not None:
        names.append(message if isinstance(message, str) else message.decode().rstrip("."))
    return names


def test_control_goes_first_then_sound_then_picture() -> None:
    outbox = Outbox(LIMITS)
    outbox.put_stats("stats")
    outbox.put(picture("p0", is_key=True), 0.0)
    outbox.put(sound("s0"), 0.0)
    outbox.put_control("control")
    assert taken(outbox, 0.0) == ["control", "s0", "p0", "stats"]
    assert outbox.num_bytes == 0


def test_nothing_but_a_key_frame_comes_first() -> None:
    outbox = Outbox(LIMITS)
    for name in ("p0", "p1"):
        outbox.put(picture(name), 0.0)
    outbox.put(picture("k2", is_key=True), 0.0)
    outbox.put(picture("p3"), 0.0)
    assert taken(outbox, 0.0) == ["k2", "p3"]
    assert outbox.num_dropped_video == 2


def test_pictures_that_wait_too_long_are_dropped_to_the_newest_key_frame() -> None:
    outbox = Outbox(LIMITS)
    for n in range(24):
        outbox.put(picture(f"p{n}", is_key=n in (0, 10, 20)), n / 24)
    assert taken(outbox, 23 / 24) == ["p20", "p21", "p22", "p23"]
    assert outbox.num_dropped_video == 20


def test_without_a_fresh_key_frame_all_are_dropped_until_one_comes() -> None:
    outbox = Outbox(LIMITS)
    for n in range(12):
        outbox.put(picture(f"p{n}", is_key=n == 0), n / 24)
    assert taken(outbox, 0.6) == []
    assert outbox.wants_key(0.6)
    outbox.put(picture("late"), 0.7)
    outbox.put(picture("key", is_key=True), 0.8)
    assert taken(outbox, 0.8) == ["key"]


def test_sound_keeps_its_order_and_loses_only_its_oldest() -> None:
    outbox = Outbox(LIMITS)
    for n in range(300):
        outbox.put(sound(f"s{n}"), n / 100)
    got = taken(outbox, 3.0)
    numbers = [int(name[1:]) for name in got]
    assert numbers == list(range(numbers[0], 300))
    assert 195 <= len(got) <= 201
    assert outbox.num_dropped_sound == 300 - len(got)


def test_a_flush_drops_sound_and_no_picture() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(picture("k", is_key=True), 0.0)
    outbox.put(sound("s"), 0.0)
    outbox.drop_sound()
    outbox.put(sound("next"), 0.1)
    assert taken(outbox, 0.1) == ["next", "k"]


def test_a_viewer_that_always_falls_behind_asks_less_and_less_often() -> None:
    outbox = Outbox(Limits(min_key_interval_s=1.0))
    asked = []
    for tick in range(400):
        now = tick / 10
        if outbox.wants_key(now):
            asked.append(now)
            outbox.put(picture("k", is_key=True), now)
            outbox.take(now)
            outbox._awaits_key = True  # as after a drop
    gaps = [round(b - a, 1) for a, b in pairwise(asked)]
    assert gaps[:4] == [1.0, 2.0, 4.0, 8.0]
    assert set(gaps[3:]) == {8.0}


def test_only_the_newest_figures_are_sent() -> None:
    outbox = Outbox(LIMITS)
    for n in range(5):
        outbox.put_stats(f"stats {n}")
    assert taken(outbox, 0.0) == ["stats 4"]


puts = st.tuples(
    st.sampled_from(["key", "picture", "sound", "take", "flush"]),
    st.floats(0, 0.4),
    st.integers(1, 20_000),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(puts, max_size=60))
def test_whatever_comes_bytes_are_bounded(
    steps: list[tuple[str, float, int]],
) -> None:
    outbox = Outbox(LIMITS)
    now, number = 0.0, 0
    for what, wait_s, size in steps:
        now += wait_s
        match what:
            case "key" | "picture":
                outbox.put(picture(f"{number}", is_key=what == "key", size=size + 8), now)
                number += 1
            case "sound":
                outbox.put(sound(f"{number}", size + 8), now)
                number += 1
            case "flush":
                outbox.drop_sound()
            case "take":
                outbox.take(now)
        assert 0 <= outbox.num_bytes <= LIMITS.max_queue_bytes
    while outbox.take(now) is not None:
        pass
    assert outbox.num_bytes == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(puts, max_size=80))
def test_every_picture_that_is_sent_follows_the_one_before_or_is_a_key_frame(
    steps: list[tuple[str, float, int]],
) -> None:
    outbox = Outbox(LIMITS)
    now, pictures, sounds = 0.0, 0, 0
    keys: set[int] = set()
    sent_pictures: list[int] = []
    sent_sounds: list[int] = []
    for what, wait_s, size in steps:
        now += wait_s
        if what in ("key", "picture"):
            keys |= {pictures} if what == "key" else set()
            parcel = picture(f"p{pictures}", is_key=what == "key", size=size % 900 + 16)
            outbox.put(parcel, now)
            pictures += 1
        elif what == "sound":
            outbox.put(sound(f"s{sounds}", size % 900 + 16), now)
            sounds += 1
        elif what == "take" and (message := outbox.take(now)) is not None:
            assert isinstance(message, bytes)
            name = message.decode().rstrip(".")
            (sent_pictures if name[0] == "p" else sent_sounds).append(int(name[1:]))
    for before, after in pairwise(sent_pictures):
        assert after == before + 1 or (after > before and after in keys)
    assert not sent_pictures or sent_pictures[0] in keys
    assert sent_sounds == sorted(sent_sounds)
