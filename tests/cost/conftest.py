"""Sessions on fake GPUs, and ledgers of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from talking_avatar.cost import Meter, RateCard
from talking_avatar.cost.holding import Holdings
from talking_avatar.engine.base import Device
from talking_avatar.ledger.store import Beat, State, Store
from talking_avatar.session import AvatarSession
from talking_avatar.stats import StatsRecorder
from talking_avatar.testing import FakeEngine, RecordingTransport
from talking_avatar.watch import Watch

THREE_GPUS = (
    Device("cuda:0", "H200", "denoise"),
    Device("cuda:1", "H200", "denoise"),
    Device("cuda:2", "L40S", "decode"),
)


def fake_engine(devices: tuple[Device, ...] = THREE_GPUS, **options: Any) -> FakeEngine:
    given: dict[str, Any] = {"step_s": 0.1, "decode_s": 0.05, "frames_per_chunk": 4}
    return FakeEngine(pipeline_depth=2, devices=devices, **{**given, **options})


def session_on(engine: FakeEngine, **options: Any) -> AvatarSession:
    return AvatarSession("any", engine=engine, transport=RecordingTransport(), **options)


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


CARD = RateCard.of({"H200": "3.60", "L40S": "0.90"})
NOON_US = int(datetime(2026, 5, 31, 12, tzinfo=UTC).timestamp() * 1e6)
HOUR_US = 3_600 * 10**6


class Clock:
    """A session that has nothing but a meter and a time."""

    def __init__(self, rates: RateCard | None = CARD, **tags: str) -> None:
        self.now = 0.0
        self.meter = Meter(THREE_GPUS, rates=rates, holdings=Holdings())
        self.watch = Watch("fake", self.meter, StatsRecorder(), lambda: self.now, tags)
        self.meter.start(0.0)
        self._written = self.meter.tally(0.0)

    def beat(self, state: State = "open") -> Beat:
        now = self.watch.snapshot()
        used, self._written = now.tally.since(self._written), now.tally
        return Beat(self.watch, now, used, state)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Three sessions: two customers, two days, one without rates."""
    path = tmp_path / "cost.db"
    store = Store(path, NOON_US)
    acme, more, other = (
        Clock(customer="acme", agent="a"),
        Clock(customer="acme", agent="b"),
        Clock(None, customer="zoo"),
    )
    for session, seconds, wall in ((acme, 3600, 0), (more, 1800, 24), (other, 3600, 24)):
        session.now = float(seconds)
        session.meter.note_speech(24_000 * 600)
        store.write([session.beat("closed")], NOON_US + wall * HOUR_US)
    store.close()
    return path
