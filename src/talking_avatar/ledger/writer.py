"""A heartbeat that writes what running sessions have used so far.

One daemon thread for each ledger, alive while any session is. It looks at the sessions' meters
twice a second and writes all of them in one transaction: so a process that is killed loses what
passed since the last heartbeat, less than a second. The event loop never waits for the disk,
except for the last write of a session that closes, and for that not long.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import ClassVar
from weakref import WeakValueDictionary

import structlog

from talking_avatar.cost import SessionTally
from talking_avatar.cost.usage import NS_PER_S
from talking_avatar.errors import LedgerError
from talking_avatar.ledger.store import Beat, Store
from talking_avatar.watch import Watch

_log = structlog.stdlib.get_logger("talking_avatar.ledger")

HEARTBEAT_S = 0.5
FINISH_WAIT_S = 2.0
"""How long closing a session waits for its last line: a disk that hangs must not hold it."""


@dataclass(slots=True, eq=False)
class _Account:
    """One session in the ledger."""

    watch: Watch
    written: SessionTally = field(default_factory=SessionTally)
    is_over: bool = False
    is_settled: Event = field(default_factory=Event)


class Ledger:
    """The ledger of this process, in one file that other processes may share.

    Args:
        path: Of the file; made when the first session begins.
        heartbeat_s: Seconds between two writes.
    """

    _of_path: ClassVar[WeakValueDictionary[Path, Ledger]] = WeakValueDictionary()
    _of_path_lock: ClassVar[Lock] = Lock()

    def __init__(self, path: Path | str, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.path = Path(path)
        self._heartbeat_s = heartbeat_s
        self._changed = Condition()
        self._accounts: list[_Account] = []
        self._thread: Thread | None = None
        self._has_news = False
        self._error: LedgerError | None = None

    @classmethod
    def of(cls, path: Path | str) -> Ledger:
        """Give the one ledger of a path: sessions that share a file share its thread."""
        key = Path(path).absolute()
        with cls._of_path_lock:
            ledger = cls._of_path.get(key)
            if ledger is None:
                ledger = cls._of_path[key] = cls(path)
            return ledger

    @property
    def error(self) -> LedgerError | None:
        """What went wrong at the last heartbeat; None if it was written."""
        return self._error

    def add(self, watch: Watch) -> None:
        """Write a session from now on. Returns at once."""
        with self._changed:
            self._accounts.append(_Account(watch))
            self._has_news = True
            self._changed.notify()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="talking-avatar-ledger", daemon=True)
                self._thread.start()

    async def finish(self, watch: Watch) -> None:
        """Write a session whose meter has stopped for the last time; waits 2 s at most."""
        with self._changed:
            account = next(a for a in self._accounts if a.watch is watch)
            account.is_over = self._has_news = True
            self._changed.notify()
        await asyncio.to_thread(account.is_settled.wait, FINISH_WAIT_S)

    # From here on: the thread.

    def _run(self) -> None:
        store: Store | None = None
        while accounts := self._wait_for_beat():
            try:
                store = store or Store(self.path, _now_us())
                self._write(store, accounts)
            except LedgerError as error:
                if store is not None:
                    store.close()
                store = None
                self._note_failure(error, accounts)
        if store is not None:
            store.close()

    def _wait_for_beat(self) -> list[_Account]:
        """Give the sessions to write, at the next heartbeat or when one came or went."""
        with self._changed:
            self._accounts = [a for a in self._accounts if not a.is_settled.is_set()]
            if self._accounts and not self._has_news:
                self._changed.wait(self._heartbeat_s)
            self._has_news = False
            if not self._accounts:
                self._thread = None
            return list(self._accounts)

    def _write(self, store: Store, accounts: list[_Account]) -> None:
        beats: list[Beat] = []
        for account in accounts:
            is_over = account.is_over  # before the look: what is over does not change any more
            now = account.watch.snapshot()
            used = now.tally.since(account.written)
            beats.append(Beat(account.watch, now, used, "closed" if is_over else "open"))
        store.write(beats, _now_us())
        for account, beat in zip(accounts, beats, strict=True):
            account.written = beat.now.tally
            if beat.state == "closed":
                account.is_settled.set()
        if self._error is not None:
            self._error = None
            _log.warning("ledger_recovered", ledger=self.path.name)

    def _note_failure(self, error: LedgerError, accounts: list[_Account]) -> None:
        if self._error is None:
            _log.error("ledger_failed", ledger=self.path.name, reason=str(error))
        self._error = error
        for account in accounts:
            if account.is_over:
                self._give_up(account)

    def _give_up(self, account: _Account) -> None:
        """A session has ended and its last line could not be written: say what is missing."""
        lost = account.watch.snapshot().tally.since(account.written)
        held_s = sum(d.held_ns for d in lost.devices if d.device.is_gpu) / NS_PER_S
        _log.error(
            "ledger_lost",
            ledger=self.path.name,
            session_id=account.watch.session_id,
            gpu_seconds=round(held_s, 3),
        )
        account.is_settled.set()


def _now_us() -> int:
    return time.time_ns() // 1_000
