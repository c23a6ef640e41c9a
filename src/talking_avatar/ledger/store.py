"""One SQLite file. Takes increments, gives sessions.

WAL mode: readers and several writing processes don't wait for each other, and what was committed
survives the end of the process in any form. (With the power it may lose the last commits, never
the file.) Every write adds to what is there, in one transaction: nothing can be counted twice.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

from talking_avatar.cost import DeviceTally, SessionTally
from talking_avatar.cost.usage import NS_PER_HOUR, NS_PER_S
from talking_avatar.engine.base import Device
from talking_avatar.errors import LedgerError
from talking_avatar.watch import Snapshot, Watch

VERSION = 1
BUSY_S = 5.0
"""How long a write waits for another process's: many thousand of them."""
STALE_S = 5.0
"""A session without a heartbeat for so long has ended with its process, at its last heartbeat.
Should it live after all (a suspended machine, a step of the wall clock), its next heartbeat says
so, and nothing is lost or doubled: what it has used comes from its own monotonic clock."""

State: TypeAlias = Literal["open", "closed", "killed"]

_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, engine TEXT NOT NULL, tags TEXT NOT NULL, currency TEXT NOT NULL,
    began_us INTEGER NOT NULL, beat_us INTEGER NOT NULL, state TEXT NOT NULL,
    warm_up_ns INTEGER NOT NULL, warm_held_ns INTEGER NOT NULL,
    frames INTEGER NOT NULL, turns INTEGER NOT NULL, stalls INTEGER NOT NULL,
    missed INTEGER NOT NULL, late INTEGER NOT NULL, worst_minute_fps REAL, engine_fps REAL);
CREATE INDEX sessions_beat ON sessions (beat_us);
CREATE TABLE days (
    session TEXT NOT NULL REFERENCES sessions, day TEXT NOT NULL,
    wall_ns INTEGER NOT NULL, samples INTEGER NOT NULL,
    PRIMARY KEY (session, day)) WITHOUT ROWID;
CREATE TABLE spans (
    session TEXT NOT NULL REFERENCES sessions, day TEXT NOT NULL, device TEXT NOT NULL,
    kind TEXT NOT NULL, role TEXT NOT NULL, rate TEXT,
    held_ns INTEGER NOT NULL, active_ns INTEGER NOT NULL, decode_ns INTEGER NOT NULL,
    energy_mj INTEGER,
    PRIMARY KEY (session, day, device)) WITHOUT ROWID;
"""
_SESSION = """
INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    beat_us = excluded.beat_us, state = excluded.state, warm_up_ns = excluded.warm_up_ns,
    warm_held_ns = excluded.warm_held_ns, frames = excluded.frames, turns = excluded.turns,
    stalls = excluded.stalls, missed = excluded.missed, late = excluded.late,
    worst_minute_fps = excluded.worst_minute_fps, engine_fps = excluded.engine_fps
"""
_DAY = """
INSERT INTO days VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    wall_ns = wall_ns + excluded.wall_ns, samples = samples + excluded.samples
"""
_SPAN = """
INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    held_ns = held_ns + excluded.held_ns, active_ns = active_ns + excluded.active_ns,
    decode_ns = decode_ns + excluded.decode_ns,
    energy_mj = coalesce(energy_mj + excluded.energy_mj, energy_mj, excluded.energy_mj)
"""
_TABLES = frozenset({"sessions", "days", "spans"})
_RUN_ON = "Sessions run on; what they use is written once the file can be written again"
_IS_OURS = "Give the file that AvatarSession(..., ledger=PATH) writes"
_CLOSE_STALE = "UPDATE sessions SET state = 'killed' WHERE state = 'open' AND beat_us < ?"


@dataclass(frozen=True, slots=True)
class DaySpan:
    """What a session held and did on one day.

    Attributes:
        day: UTC.
        wall_ns: Of the session.
        num_samples: Of speech.
        devices: What each held; ``rates`` has the hourly rate of each, None where unknown.
    """

    day: date
    wall_ns: int
    num_samples: int
    devices: tuple[DeviceTally, ...]
    rates: tuple[Decimal | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSession:
    """One session as the ledger knows it.

    Attributes:
        state: ``"killed"``: its process ended without closing it; it counts to its last heartbeat.
        began, last_beat: By the wall clock; nothing is computed from them.
        warm_up_s, warm_up_gpu_hours: Before its first frame; included in ``days``.
    """

    session_id: str
    engine: str
    tags: dict[str, str]
    currency: str
    state: State
    began: datetime
    last_beat: datetime
    warm_up_s: float
    warm_up_gpu_hours: float
    num_frames: int
    num_turns: int
    num_stalls: int
    num_missed: int
    num_late: int
    worst_minute_fps: float | None
    engine_fps: float | None
    days: tuple[DaySpan, ...]

    @property
    def wall_s(self) -> float:
        return sum(day.wall_ns for day in self.days) / NS_PER_S


@dataclass(frozen=True, slots=True)
class Beat:
    """One session at one heartbeat.

    Attributes:
        watch: The session.
        now: How it is.
        used: What it used since its last beat that was written.
        state: Whether it goes on.
    """

    watch: Watch
    now: Snapshot
    used: SessionTally
    state: State


class Store:
    """The file, open for writing by one thread.

    Raises:
        LedgerError: It cannot be opened, or another version or another program made it.
    """

    def __init__(self, path: Path, now_us: int) -> None:
        with _as_ledger_error(f"the ledger {path.name} cannot be opened", _RUN_ON):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._db.execute("BEGIN")  # another process may be making the tables
                _version_of(self._db, path)  # nothing of another program's file is changed
                self._db.execute("COMMIT")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._make_tables()
                self._db.execute(_CLOSE_STALE, (now_us - int(STALE_S * 1e6),))
            except BaseException:
                self._db.close()
                raise

    def _make_tables(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._db.execute("COMMIT")

    def write(self, beats: list[Beat], now_us: int) -> None:
        """Add what sessions have used since the last time; all of it, or nothing.

        Args:
            beats: One a session.
            now_us: The wall clock.

        Raises:
            LedgerError: Nothing was written.
        """
        day = datetime.fromtimestamp(now_us / 1e6, UTC).date().isoformat()
        with _as_ledger_error("the ledger cannot be written", _RUN_ON):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for beat in beats:
                    self._db.execute(_SESSION, _session_row(beat, now_us))
                    self._db.execute(_DAY, _day_row(beat, day))
                    self._db.executemany(_SPAN, _span_rows(beat, day))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._db.close()


def _session_row(beat: Beat, now_us: int) -> tuple[str | int | float | None, ...]:
    watch, now, counts = beat.watch, beat.now, beat.now.counts
    return (
        watch.session_id, watch.engine, json.dumps(dict(watch.tags), sort_keys=True),
        now.usage.currency, int(watch.began.timestamp() * 1e6), now_us, beat.state,
        now.tally.warm_up_ns, now.tally.warm_held_ns, counts.num_frames, counts.num_turns,
        counts.num_stalls, counts.missed_chunks.total, counts.late_frames.total,
        counts.worst_minute_fps, now.engine_fps,
    )  # fmt: skip


def _day_row(beat: Beat, day: str) -> tuple[str | int, ...]:
    return beat.watch.session_id, day, beat.used.wall_ns, beat.used.num_samples


def _span_rows(beat: Beat, day: str) -> Iterator[tuple[str | int | None, ...]]:
    for tally in beat.used.devices:
        device, rate = tally.device, beat.watch.meter.rate(tally.device.kind)
        yield (
            beat.watch.session_id, day, device.name, device.kind, device.role,
            None if rate is None else str(rate),
            tally.held_ns, tally.active_ns, tally.decode_ns, tally.energy_mj,
        )  # fmt: skip


def read_sessions(
    path: Path, *, since: date | None = None, now: datetime | None = None
) -> tuple[LedgerSession, ...]:
    """Read all sessions that had a heartbeat on or after a day (UTC), oldest first.

    Args:
        path: Of the ledger.
        since: First day, also of what is counted of each session; None: all.
        now: To tell sessions that run from those whose process ended; None: by the wall clock.

    Raises:
        LedgerError: There is none, it cannot be read, or it is none of this version's.
    """
    if not path.is_file():
        raise LedgerError(
            f"there is no ledger at {path}: AvatarSession(..., ledger=PATH) writes one"
        )
    first_day = (since or date.min).isoformat()
    stale_us = int(((now or datetime.now(UTC)).timestamp() - STALE_S) * 1e6)
    with (
        _as_ledger_error(f"the ledger {path.name} cannot be read", _IS_OURS),
        closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as db,
    ):
        db.execute("BEGIN")  # all queries see the same moment
        if _version_of(db, path) == 0:
            return ()
        db.row_factory = sqlite3.Row
        days = _days(db, first_day)
        rows = db.execute("SELECT * FROM sessions ORDER BY began_us, id").fetchall()
    return tuple(_session(row, days[row["id"]], stale_us) for row in rows if row["id"] in days)


def _version_of(db: sqlite3.Connection, path: Path) -> int:
    """Give the version of a ledger; 0 for a file that is still empty.

    Raises:
        LedgerError: The file is another version's or another program's.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise LedgerError(
            f"the ledger {path.name} is of version {version}, this package knows {VERSION}: "
            "give another file"
        )
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not (tables >= _TABLES if version else not tables):
        raise LedgerError(
            f"{path.name} is no ledger but a database of another program, with the tables "
            f"{', '.join(sorted(tables)) or 'none'}: give another file"
        )
    return int(version)


def _days(db: sqlite3.Connection, first_day: str) -> dict[str, list[DaySpan]]:
    spans: dict[tuple[str, str], list[sqlite3.Row]] = {}
    for row in db.execute("SELECT * FROM spans WHERE day >= ? ORDER BY device", (first_day,)):
        spans.setdefault((row["session"], row["day"]), []).append(row)
    days: dict[str, list[DaySpan]] = {}
    for row in db.execute("SELECT * FROM days WHERE day >= ? ORDER BY day", (first_day,)):
        held = spans.get((row["session"], row["day"]), [])
        day = DaySpan(
            day=date.fromisoformat(row["day"]),
            wall_ns=row["wall_ns"],
            num_samples=row["samples"],
            devices=tuple(_tally(span) for span in held),
            rates=tuple(None if s["rate"] is None else Decimal(s["rate"]) for s in held),
        )
        days.setdefault(row["session"], []).append(day)
    return days


def _tally(row: sqlite3.Row) -> DeviceTally:
    device = Device(row["device"], row["kind"], row["role"])
    return DeviceTally(device, row["held_ns"], row["active_ns"], row["decode_ns"], row["energy_mj"])


def _session(row: sqlite3.Row, days: list[DaySpan], stale_us: int) -> LedgerSession:
    is_stale = row["state"] == "open" and row["beat_us"] < stale_us
    return LedgerSession(
        session_id=row["id"],
        engine=row["engine"],
        tags=json.loads(row["tags"]),
        currency=row["currency"],
        state="killed" if is_stale else row["state"],
        began=datetime.fromtimestamp(row["began_us"] / 1e6, UTC),
        last_beat=datetime.fromtimestamp(row["beat_us"] / 1e6, UTC),
        warm_up_s=row["warm_up_ns"] / NS_PER_S,
        warm_up_gpu_hours=row["warm_held_ns"] / NS_PER_HOUR,
        num_frames=row["frames"],
        num_turns=row["turns"],
        num_stalls=row["stalls"],
        num_missed=row["missed"],
        num_late=row["late"],
        worst_minute_fps=row["worst_minute_fps"],
        engine_fps=row["engine_fps"],
        days=tuple(days),
    )


@contextmanager
def _as_ledger_error(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"{what}: {error}. {advice}") from error
