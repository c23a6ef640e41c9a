"""The ledger outlives what writes it, and never stops a session."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.cost.conftest import CARD, HOUR_US, NOON_US, Clock, fake_engine, session_on

from talking_avatar.errors import LedgerError
from talking_avatar.ledger import Ledger, LedgerSession, read_sessions, report
from talking_avatar.ledger import store as store_module
from talking_avatar.ledger.store import Beat, Store
from talking_avatar.testing import in_virtual_time


def held_s(sessions: tuple[LedgerSession, ...]) -> float:
    return sum(d.held_ns for s in sessions for day in s.days for d in day.devices) / 1e9


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


# ---- with sessions


@in_virtual_time
async def test_a_session_is_in_the_ledger_when_it_has_closed() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "cost.db"
        tags = {"customer": "acme"}
        async with session_on(fake_engine(), ledger=path, rates=CARD, tags=tags) as session:
            await session.idle(60)
        usage = session.usage()
        [line] = report(read_sessions(path), by="tag")
        [known] = read_sessions(path)
    assert line.key == "customer=acme"
    assert (line.num_sessions, line.num_killed) == (1, 0)
    assert line.usage.gpu_hours == pytest.approx(usage.gpu_hours, rel=1e-12)
    assert line.price == usage.price
    assert known.state == "closed"
    assert known.num_frames >= 60 * 24
    assert known.warm_up_s == usage.warm_up_s


async def test_the_thread_ends_with_the_last_session(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(2):
        async with session_on(fake_engine(), clock="unpaced", ledger=tmp_path / "cost.db"):
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("talking-avatar-ledger") == 1
        for _ in range(200):
            if "talking-avatar-ledger" not in [t.name for t in threading.enumerate()]:
                break
            await asyncio.sleep(0.01)
        assert "talking-avatar-ledger" not in [t.name for t in threading.enumerate()]
    assert threading.active_count() <= before + 2  # the loop's own executor
    assert [s.state for s in read_sessions(tmp_path / "cost.db")] == ["closed", "closed"]


def test_one_path_is_one_ledger(tmp_path: Path) -> None:
    assert Ledger.of(tmp_path / "a.db") is Ledger.of(str(tmp_path / "a.db"))
    assert Ledger.of(tmp_path / "a.db") is not Ledger.of(tmp_path / "b.db")


async def test_a_ledger_that_cannot_be_made_is_an_event_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ledger = Ledger(tmp_path / "file" / "cost.db", heartbeat_s=0.01)
    with capture_logs() as logs:
        async with session_on(fake_engine(), clock="unpaced", ledger=ledger) as session:
            await session.idle(2)
            await until(lambda: ledger.error is not None)
    assert isinstance(ledger.error, LedgerError)
    assert "Sessions run on" in str(ledger.error)
    events = [log["event"] for log in logs if log["event"].startswith("ledger")]
    assert events == ["ledger_failed", "ledger_lost"]
    assert session.gpu_hours() > 0


@pytest.mark.parametrize("trouble", ["disk full", "read-only"])
async def test_trouble_with_the_disk_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A full or read-only database fails each heartbeat; once it is over, nothing is missing."""
    is_broken = threading.Event()
    connect = sqlite3.connect

    def connect_broken(*args, **kwargs):
        db = connect(*args, **kwargs)
        if is_broken.is_set() and trouble == "disk full":
            db.execute("PRAGMA max_page_count = 1")
        elif is_broken.is_set():
            db.execute("PRAGMA query_only = ON")
        return db

    monkeypatch.setattr(store_module.sqlite3, "connect", connect_broken)
    is_broken.set()
    ledger = Ledger(tmp_path / "cost.db", heartbeat_s=0.01)
    with capture_logs() as logs:
        async with session_on(fake_engine(), clock="unpaced", ledger=ledger) as session:
            await until(lambda: ledger.error is not None)
            assert {"disk full": "full", "read-only": "readonly"}[trouble] in str(ledger.error)
            await session.idle(1)
            is_broken.clear()
            await until(lambda: ledger.error is None)
            await session.idle(1)
    events = [log["event"] for log in logs if log["event"].startswith("ledger")]
    assert events == ["ledger_failed", "ledger_recovered"]
    tally = session.usage()
    assert held_s(read_sessions(ledger.path)) == pytest.approx(
        sum(device.held_s for device in tally.devices), abs=1e-6
    )


async def test_what_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was open already, and some heartbeats fail: none of their time is lost."""
    is_broken, num_written, write = threading.Event(), [0], Store.write

    def write_or_fail(store: Store, beats: list[Beat], now_us: int) -> None:
        if is_broken.is_set():
            raise LedgerError("the disk is away")
        write(store, beats, now_us)
        num_written[0] += 1

    monkeypatch.setattr(Store, "write", write_or_fail)
    ledger = Ledger(tmp_path / "cost.db", heartbeat_s=0.01)
    async with session_on(fake_engine(), clock="unpaced", ledger=ledger) as session:
        await until(lambda: num_written[0] > 0)
        is_broken.set()
        await until(lambda: ledger.error is not None)
        await asyncio.sleep(0.05)
        is_broken.clear()
        await until(lambda: ledger.error is None)
    assert held_s(read_sessions(ledger.path)) == pytest.approx(
        sum(device.held_s for device in session.usage().devices), abs=1e-6
    )


# ---- killed


_SESSIONS = """
import asyncio, sys, time
from pathlib import Path
from talking_avatar.engine.base import Device
from talking_avatar.session import AvatarSession
from talking_avatar.testing import FakeEngine, RecordingTransport

async def main():
    engine = FakeEngine(devices=(Device("cuda:0", "H200", "denoise"),))
    options = dict(engine=engine, ledger=Path(sys.argv[1]), tags={"child": sys.argv[2]})
    began = time.monotonic()
    async with AvatarSession("any", transport=RecordingTransport(), **options):
        async with AvatarSession("any", transport=RecordingTransport(), **options):
            print(began, flush=True)
            await asyncio.sleep(60)

asyncio.run(main())
"""


def kill_some(ledger: Path, num: int, seed: int) -> list[float]:
    """Kill processes with two sessions each at random times; give how long each held its GPU."""
    dice = random.Random(seed)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _SESSIONS, str(ledger), f"{seed}.{child}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for child in range(num)
    ]
    held = []
    for child in children:
        assert child.stdout is not None
        began = float(child.stdout.readline())
        time.sleep(dice.uniform(0, 0.3))
        held.append(time.monotonic() - began)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    return held


def check_kills(ledger: Path, seeds: range, each: int) -> None:
    truly_held: dict[str, float] = {}
    for seed in seeds:
        for child, seconds in enumerate(kill_some(ledger, each, seed)):
            truly_held[f"{seed}.{child}"] = seconds
    later = datetime.now(UTC) + timedelta(minutes=1)
    sessions = read_sessions(ledger, now=later)
    assert {session.state for session in sessions} == {"killed"}
    for child, seconds in truly_held.items():
        ours = tuple(s for s in sessions if s.tags["child"] == child)
        assert len(ours) == 2
        lost_s = seconds - held_s(ours)
        assert lost_s + 0.02 >= 0, f"child {child} was counted {-lost_s:.3f} s too much"
        assert lost_s <= 1.0, f"child {child} lost {lost_s:.3f} s"


def test_ten_killed_processes_lose_a_second_at_most(tmp_path: Path) -> None:
    check_kills(tmp_path / "cost.db", range(2), 5)


@pytest.mark.slow
def test_a_hundred_killed_processes_lose_a_second_at_most(tmp_path: Path) -> None:
    check_kills(tmp_path / "cost.db", range(25), 4)


# ---- the file


def test_a_restart_closes_what_was_left_open_at_its_last_heartbeat(tmp_path: Path) -> None:
    path, session = tmp_path / "cost.db", Clock()
    store = Store(path, NOON_US)
    session.now = 30.0
    store.write([session.beat()], NOON_US)
    store.close()
    Store(path, NOON_US + HOUR_US).close()
    [known] = read_sessions(path, now=datetime.fromtimestamp(NOON_US / 1e6, UTC))
    assert known.state == "killed"
    assert known.last_beat == datetime.fromtimestamp(NOON_US / 1e6, UTC)
    assert (known.wall_s, held_s((known,))) == (30.0, 90.0)


def test_a_session_that_was_given_up_and_lives_is_open_again(tmp_path: Path) -> None:
    """A suspended laptop, or a wall clock that jumped: no time is lost and none doubled."""
    session, store = Clock(), Store(tmp_path / "cost.db", NOON_US)
    session.now = 30.0
    store.write([session.beat()], NOON_US)
    Store(tmp_path / "cost.db", NOON_US + HOUR_US).close()
    session.now = 60.0
    store.write([session.beat()], NOON_US + HOUR_US)
    [known] = read_sessions(
        tmp_path / "cost.db", now=datetime.fromtimestamp((NOON_US + HOUR_US) / 1e6, UTC)
    )
    assert (known.state, known.wall_s) == ("open", 60.0)
    store.close()


def test_midnight_divides_a_session_and_steps_of_the_wall_clock_do_not_matter(
    tmp_path: Path,
) -> None:
    session, store = Clock(), Store(tmp_path / "cost.db", NOON_US)
    walls = [NOON_US, NOON_US + 12 * HOUR_US, NOON_US + 13 * HOUR_US, NOON_US - 40 * HOUR_US]
    for number, wall in enumerate(walls):
        session.now = 10.0 * (number + 1)
        store.write([session.beat()], wall)
    store.close()
    [known] = read_sessions(tmp_path / "cost.db")
    assert {day.day.isoformat(): day.wall_ns for day in known.days} == {
        "2026-05-29": 10 * 10**9,
        "2026-05-31": 10 * 10**9,
        "2026-06-01": 20 * 10**9,
    }
    assert known.wall_s == 40.0


def test_energy_of_all_beats_adds_up_and_waits_for_the_first_reading(tmp_path: Path) -> None:
    session, store, path = Clock(), Store(tmp_path / "cost.db", NOON_US), tmp_path / "cost.db"
    for energies in (None, 40, 2):
        session.now += 1.0
        beat = session.beat()
        devices = tuple(replace(device, energy_mj=energies) for device in beat.used.devices)
        store.write([replace(beat, used=replace(beat.used, devices=devices))], NOON_US)
    store.close()
    [known] = read_sessions(path)
    assert [device.energy_mj for device in known.days[0].devices] == [42, 42, 42]


def test_speech_of_all_beats_adds_up(tmp_path: Path) -> None:
    session, store = Clock(), Store(tmp_path / "cost.db", NOON_US)
    for _ in range(3):
        session.meter.note_speech(24_000)
        store.write([session.beat()], NOON_US)
    store.close()
    [line] = report(read_sessions(tmp_path / "cost.db"))
    assert line.usage.speaking_s == 3.0


def test_two_processes_may_write(tmp_path: Path) -> None:
    """Two connections, as two processes have, and a reader between their writes."""
    path = tmp_path / "cost.db"
    sessions, stores = [Clock(), Clock()], [Store(path, NOON_US), Store(path, NOON_US)]
    for second in range(1, 20):
        for session, store in zip(sessions, stores, strict=True):
            session.now = float(second)
            store.write([session.beat()], NOON_US)
        assert held_s(read_sessions(path)) == 2 * 3 * second
    for store in stores:
        store.close()


def test_a_write_is_all_or_nothing(tmp_path: Path) -> None:
    good, bad = Clock(), Clock()
    store = Store(tmp_path / "cost.db", NOON_US)
    good.now = bad.now = 1.0
    bad.watch.engine = None  # type: ignore[assignment]
    with pytest.raises(LedgerError, match="cannot be written"):
        store.write([good.beat(), bad.beat()], NOON_US)
    assert read_sessions(tmp_path / "cost.db") == ()
    store.close()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.db"
    with pytest.raises(LedgerError, match="there is no ledger"):
        read_sessions(path)
    path.write_bytes(b"This is a text file, and a long one, so that it has a header." * 20)
    with pytest.raises(LedgerError, match="not a database"):
        Store(path, NOON_US)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    for open_it in (lambda: Store(path, NOON_US), lambda: read_sessions(path)):
        with pytest.raises(LedgerError, match="version 7"):
            open_it()


@pytest.mark.parametrize("version", [0, 1])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "users.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE users (id)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = path.read_bytes()
    for open_it in (lambda: Store(path, NOON_US), lambda: read_sessions(path)):
        with pytest.raises(LedgerError, match="another program, with the tables users"):
            open_it()
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "cost.db"
    path.touch()
    assert read_sessions(path) == ()
    Store(path, NOON_US).close()
    assert read_sessions(path) == ()


def test_what_cannot_be_read_says_which_file_would_do(tmp_path: Path, ledger: Path) -> None:
    part = tmp_path / "part.db"
    part.write_bytes(ledger.read_bytes()[:9_000])
    with pytest.raises(LedgerError, match=r"part\.db cannot be read: .*ledger=PATH") as failed:
        read_sessions(part)
    assert "Sessions run on" not in str(failed.value)
