"""What is counted is exact: against a plain sum over spans, whatever order things happen in."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talking_avatar.bench_meter import run_meter
from talking_avatar.cost import DeviceTally, Meter, RateCard, SessionTally, Usage
from talking_avatar.cost.holding import Holdings, Share
from talking_avatar.cost.meter import STEP_BOUNDS_S
from talking_avatar.engine.base import Device, FrameBlock

H200 = Device("cuda:0", "H200", "denoise")
DECODER = Device("cuda:1", "L40S", "decode")
CPU = Device("cpu", "cpu", "render")
DAY_NS = 86_400 * 10**9


def block(generate_s: float, decode_s: float = 0.0, cpu_s: float | None = None) -> FrameBlock:
    return FrameBlock(0, np.zeros((4, 2, 2, 3), np.uint8), generate_s, decode_s, cpu_s)


def own() -> Holdings:
    return Holdings()


# ---- whose time it is

Spans = list[tuple[int, int]]
SPANS: st.SearchStrategy[Spans] = st.lists(
    st.tuples(st.integers(0, 3 * DAY_NS), st.integers(0, 3 * DAY_NS)).map(
        lambda pair: (min(pair), max(pair))
    ),
    min_size=1,
    max_size=6,
)


def union_ns(spans: Spans) -> int:
    covered, reach = 0, -1
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return covered


def shares_by_hand(spans: Spans) -> list[Fraction]:
    """Cut time at every begin and end; give each piece in equal parts to those who hold it."""
    shares = [Fraction(0)] * len(spans)
    cuts = sorted({time for span in spans for time in span})
    for begin, end in pairwise(cuts):
        holders = [i for i, (a, b) in enumerate(spans) if a <= begin and end <= b]
        for i in holders:
            shares[i] += Fraction(end - begin, len(holders))
    return shares


def replay(spans: Spans, reads: list[int]) -> list[Share]:
    """Hold and release one GPU as the spans say, and look at it in between."""
    holdings, shares = own(), dict[int, Share]()
    events = [(begin, 0, i) for i, (begin, _) in enumerate(spans)]
    events += [(end, 2, i) for i, (_, end) in enumerate(spans)]
    events += [(time, 1, -1) for time in reads]
    for time, what, i in sorted(events):
        if what == 0:
            shares[i] = holdings.hold("cuda:0", time)
        elif what == 1:
            holdings.settle("cuda:0", time)
        else:
            holdings.release("cuda:0", shares[i], time)
    return [shares[i] for i in range(len(spans))]


@given(spans=SPANS, reads=st.lists(st.integers(0, 3 * DAY_NS), max_size=8))
def test_shares_add_up_to_what_the_gpu_was_held(spans: Spans, reads: list[int]) -> None:
    """Overlapping, nested, equal, empty, and over three midnights; however often one looks."""
    shares = replay(spans, reads)
    assert sum(share.held_ns for share in shares) == union_ns(spans)
    slack_ns = 2 * len(spans) + len(reads) + 1  # one nanosecond at most for each time it was cut
    for share, exact in zip(shares, shares_by_hand(spans), strict=True):
        assert share.held_ns >= 0
        assert abs(share.held_ns - exact) <= slack_ns


@given(steps=st.lists(st.integers(-DAY_NS, DAY_NS), max_size=30))
def test_a_clock_that_steps_back_takes_nothing_away(steps: list[int]) -> None:
    holdings, now, furthest = own(), 0, 0
    share = holdings.hold("cuda:0", 0)
    before = 0
    for step in steps:
        now += step
        furthest = max(furthest, now)
        holdings.settle("cuda:0", now)
        assert share.held_ns >= before
        before = share.held_ns
    assert share.held_ns == furthest


def test_energy_is_shared_as_time_is() -> None:
    counter = {"cuda:0": 1_000}

    def read(device: Hashable) -> int | None:
        return counter.get(str(device))

    holdings = Holdings(read)
    one = holdings.hold("cuda:0", 0)
    counter["cuda:0"] += 700
    two = holdings.hold("cuda:0", 10)
    counter["cuda:0"] += 301
    holdings.release("cuda:0", one, 20)
    counter["cuda:0"] += 50
    holdings.release("cuda:0", two, 30)
    assert one.energy_mj is not None
    assert two.energy_mj is not None
    assert one.energy_mj + two.energy_mj == 1_051
    assert {one.energy_mj, two.energy_mj} <= {850, 851, 200, 201}
    silent = holdings.hold("cuda:7", 30)
    holdings.release("cuda:7", silent, 40)
    assert (silent.energy_mj, silent.held_ns) == (None, 10)


# ---- one session


def test_a_session_alone_is_charged_from_begin_to_end() -> None:
    meter = Meter([H200, DECODER], holdings=own())
    meter.start(100.0, since=40.0)
    meter.ready(160.0)
    meter.ready(999.0)
    for _ in range(10):
        meter.note(block(0.1, 0.05))
    meter.note_speech(24_000 * 30)
    meter.stop(400.0)
    meter.stop(500.0)
    usage = meter.usage(1_000.0)
    gpu, decoder = usage.devices
    assert (gpu.kind, gpu.held_s, gpu.active_s) == ("H200", 360.0, 1.0)
    assert (decoder.held_s, decoder.active_s, decoder.decode_held_s) == (360.0, 0.5, 360.0)
    assert (gpu.decode_active_s, decoder.decode_active_s) == (0.0, 0.5)
    assert usage.gpu_hours == pytest.approx(0.2)
    assert (usage.wall_s, usage.warm_up_s, usage.speaking_s) == (360.0, 120.0, 30.0)
    assert usage.warm_up_gpu_hours == pytest.approx(2 * 120 / 3600)
    assert (usage.price, gpu.price, usage.energy_wh) == (None, None, None)
    per_speaking = usage.per_speaking_minute
    assert per_speaking is not None
    assert per_speaking.gpu_hours == pytest.approx(0.4)
    assert per_speaking.price is None


def test_before_the_first_frame_all_is_warming_up() -> None:
    gpus = [Device(f"cuda:{place}", "H200", "denoise") for place in range(3)]
    meter = Meter(gpus, holdings=Holdings())
    meter.start(0.0)
    assert meter.usage(60.0).warm_up_gpu_hours == meter.usage(60.0).gpu_hours == 0.05
    meter.ready(120.0)
    assert meter.usage(3_600.0).warm_up_gpu_hours == 0.1


def test_a_gpu_that_an_engine_names_twice_is_held_once() -> None:
    gpu = Device("cuda:0", "H200", "denoise")
    meter = Meter((gpu, gpu), holdings=Holdings())
    meter.start(0.0)
    usage = meter.usage(3_600.0)
    assert usage.gpu_hours == 1.0
    assert usage.devices[0].num_devices == 1


def test_a_decoder_that_shares_a_gpu_is_counted_apart() -> None:
    meter = Meter([H200, Device("cuda:1", "H200", "denoise")], holdings=own())
    meter.start(0.0)
    meter.note(block(0.1, 0.05))
    [gpus] = meter.usage(1.0).devices
    assert gpus.active_s == pytest.approx(0.25)
    assert gpus.decode_active_s == pytest.approx(0.05)
    assert gpus.decode_held_s == 0.0


def test_a_cpu_is_billed_by_the_time_of_the_engines_thread() -> None:
    rates = RateCard.of({"cpu": "0.036"}, "EUR")
    meter = Meter([CPU], rates=rates, holdings=own())
    meter.start(0.0)
    meter.note(block(0.5, cpu_s=0.25))
    meter.note(block(0.75))  # an engine that does not tell: taken as one core at work
    usage = meter.usage(60.0)
    assert (usage.gpu_hours, usage.core_hours) == (0.0, 1.0 / 3600)
    assert usage.price == Decimal("0.036") / 3600
    assert usage.currency == "EUR"
    per_minute = usage.per_wall_minute
    assert per_minute is not None
    assert per_minute.price == Decimal("0.036") / 3600


def test_two_sessions_on_a_cpu_do_not_divide_it() -> None:
    holdings = own()
    meters = [Meter([CPU], holdings=holdings) for _ in range(2)]
    for meter in meters:
        meter.start(0.0)
    assert [meter.usage(10.0).devices[0].held_s for meter in meters] == [10.0, 10.0]


def test_two_sessions_divide_a_gpu() -> None:
    holdings = own()
    first, second = (Meter([H200], holdings=holdings) for _ in range(2))
    first.start(0.0)
    second.start(10.0)
    assert first.usage(20.0).devices[0].held_s == 15.0
    first.stop(30.0)
    second.stop(40.0)
    held = [meter.tally(99.0).devices[0].held_ns for meter in (first, second)]
    assert held == [20 * 10**9, 20 * 10**9]


def test_a_session_that_loads_while_others_hold_the_gpu_joins_when_it_is_open() -> None:
    holdings = own()
    first, second = (Meter([H200], holdings=holdings) for _ in range(2))
    first.start(0.0)
    second.start(60.0, since=30.0)
    first.stop(80.0)
    second.stop(80.0)
    held = [meter.tally(0.0).devices[0].held_ns for meter in (first, second)]
    assert held == [70 * 10**9, 10 * 10**9]


def test_nothing_is_used_before_the_start_nor_after_the_end() -> None:
    meter = Meter([H200], holdings=own())
    assert meter.usage(5.0).devices == ()
    assert meter.usage(5.0).per_wall_minute is None
    meter.stop(6.0)
    meter.start(7.0)
    assert meter.usage(6.0).gpu_hours == 0.0
    meter.stop(8.0)
    assert meter.usage(1e9).wall_s == 1.0


@given(
    cuts=st.lists(st.integers(0, 10**13), min_size=2, max_size=12).map(sorted),
    work=st.lists(st.floats(0, 2, allow_nan=False), max_size=12),
)
def test_parts_of_a_session_add_up_to_it(cuts: list[int], work: list[float]) -> None:
    meter = Meter([H200, DECODER], holdings=own())
    meter.start(cuts[0] / 1e9)
    seen = first = meter.tally(cuts[0] / 1e9)
    parts: list[SessionTally] = []
    for cut, step in zip(cuts[1:], work + [0.1] * len(cuts), strict=False):
        meter.note(block(step, step / 3))
        meter.note_speech(1_000)
        now = meter.tally(cut / 1e9)
        parts.append(now.since(seen))
        seen = now
    whole = seen.since(first)
    assert sum(part.wall_ns for part in parts) == whole.wall_ns
    assert sum(part.num_samples for part in parts) == whole.num_samples
    for place in range(2):
        for name in ("held_ns", "active_ns", "decode_ns"):
            values = [getattr(part.devices[place], name) for part in parts]
            assert min(values) >= 0
            assert sum(values) == getattr(whole.devices[place], name)


def test_a_part_from_nothing_is_the_whole() -> None:
    whole = SessionTally((DeviceTally(H200, 5, 3, 1, 7),), 5, 2, 2, 9)
    assert whole.since(SessionTally()) == whole


def test_steps_fall_into_bins_and_say_what_the_engine_could_do() -> None:
    meter = Meter([H200], holdings=own())
    assert (meter.engine_fps, meter.is_at_or_below_real_time) == (None, False)
    for step in (1 / 6, 0.1, 9.0):
        meter.note(block(step))
    assert meter.steps.counts[STEP_BOUNDS_S.index(1 / 6)] == 1
    assert meter.steps.counts[STEP_BOUNDS_S.index(0.1)] == 1
    assert meter.steps.counts[-1] == 1
    assert sum(meter.steps.counts) == 3
    assert meter.engine_fps == pytest.approx(12 / (9.1 + 1 / 6), abs=1e-6)
    assert meter.is_at_or_below_real_time


def test_usages_add_up_kind_by_kind_and_unknown_stays_unknown() -> None:
    def used(seconds: float, rates: RateCard | None, *devices: Device) -> Usage:
        meter = Meter(devices, rates=rates, holdings=own())
        meter.start(0.0)
        meter.note(block(0.1, 0.05))
        meter.stop(seconds)
        return meter.usage(0.0)

    card = RateCard.of({"H200": "3.60"})
    one, other = used(3600, card, H200, DECODER), used(1800, card, H200)
    total = sum([one, other], Usage())
    h200, l40s = total.devices
    assert (h200.kind, h200.held_s, h200.num_devices) == ("H200", 5400.0, 1)
    assert (h200.price, l40s.price, total.price) == (Decimal("5.40"), None, None)
    assert h200.active_s == pytest.approx(0.1 + 0.15)
    assert total.wall_s == 5400.0
    assert (one + Usage(), Usage() + one) == (one, one)
    assert sum([one, used(1.0, None, H200)], Usage()).devices[0].price is None
    with pytest.raises(ValueError, match="USD and EUR"):
        _ = one + used(1.0, RateCard.of({}, "EUR"), H200)


# ---- rates


def test_the_rate_of_the_day_on_which_a_session_began_counts() -> None:
    card = RateCard.parse(["H100=2.99", "H100=2.49@2026-07-01", "L40S=0.80"])
    assert card.per_hour("H100", date(2026, 6, 30)) == Decimal("2.99")
    assert card.per_hour("H100", date(2026, 7, 1)) == Decimal("2.49")
    assert card.per_hour("B200", date(2026, 7, 1)) is None
    late = Meter([H200], rates=RateCard.parse(["H200=3@2026-07-01"]), began_on=date(2026, 6, 30))
    late.start(0.0)
    late.stop(3600.0)
    assert late.usage(0.0).price is None


def test_money_is_exact() -> None:
    meter = Meter([H200], rates=RateCard.of({"H200": "3.30"}), holdings=own())
    meter.start(0.0)
    meter.stop(3600.0 / 3)
    assert meter.usage(0.0).price == Decimal("1.10")


def test_one_unknown_rate_makes_the_whole_price_unknown() -> None:
    meter = Meter([H200, DECODER], rates=RateCard.of({"H200": "3.30"}), holdings=own())
    meter.start(0.0)
    usage = meter.usage(3600.0)
    assert usage.devices[0].price == Decimal("3.30")
    assert usage.price is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["H100"], "must be KIND=PRICE"),
        (["=3"], "must be KIND=PRICE"),
        (["H100=cheap"], "no number"),
        (["H100=-1"], "at least 0"),
        (["H100=NaN"], "at least 0"),
        (["H100=1", "H100=2"], "two rates of H100"),
        (["H100=1@yesterday"], "H100 since 'yesterday': that is no day"),
    ],
)
def test_what_is_no_price_is_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RateCard.parse(words)


def test_a_float_is_refused_where_a_cent_could_be_lost() -> None:
    with pytest.raises(ValueError, match="float"):
        RateCard.of({"H100": 2.99})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="currency"):
        RateCard.of({}, "dollars")


def test_a_card_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(
        '{"currency": "EUR", "rates": {"H200": "3.50", "L40S": 0.8,'
        ' "H100": [{"per_hour": "2.99"}, {"per_hour": "2.49", "since": "2026-07-01"}]}}'
    )
    card = RateCard.load(path)
    assert card.currency == "EUR"
    assert card.per_hour("L40S", date(2026, 1, 1)) == Decimal("0.8")
    assert card.per_hour("H100", date(2027, 1, 1)) == Decimal("2.49")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b'{"H200": 3}', "rates.json is no rate card"),
        (b'{"rates": {"H200": "3"', "rates.json is no rate card"),
        (b"[]", "rates.json is no rate card"),
        (b"\xff\xfe", "rates.json is no rate card"),
        (b'{"rates": {"H200": true}}', "bool True"),
        (b'{"rates": {"H200": "-2"}}', "at least 0"),
        (b'{"rates": {"H200": [{"per_hour": 1, "since": "May"}]}}', "no day"),
    ],
)
def test_a_file_that_is_no_card_is_named(tmp_path: Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "rates.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=complaint):
        RateCard.load(path)


async def test_what_metering_costs_is_measured() -> None:
    cost = await run_meter(2, seconds=4)
    assert cost.num_sessions == 2
    assert cost.percent_of_a_core == pytest.approx(cost.counting + cost.ledger + cost.metrics)
    assert cost.ledger > 0
    assert 0 < cost.session_bytes < 1_000_000
