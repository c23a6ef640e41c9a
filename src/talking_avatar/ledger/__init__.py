"""What sessions cost, on disk: survives the process that ran them.

    store    one SQLite file: sessions, and what they held on each day
    writer   `Ledger`: a heartbeat that writes what running sessions have used so far
    report   sums over sessions, days and tags

Takes `Watch`es of sessions. Gives reports. Never makes a session wait or fail: trouble with the
disk is an event (`ledger_failed`) and `Ledger.error`.
"""

from __future__ import annotations

from talking_avatar.ledger.report import Line, report
from talking_avatar.ledger.store import DaySpan, LedgerSession, read_sessions
from talking_avatar.ledger.writer import Ledger

__all__ = ["DaySpan", "Ledger", "LedgerSession", "Line", "read_sessions", "report"]
