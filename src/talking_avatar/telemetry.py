"""Which sessions of this process run, and what those that ended have left behind."""

from __future__ import annotations

from talking_avatar.watch import Watch


class Sessions:
    """All sessions of a process."""

    def __init__(self) -> None:
        self._watches: list[Watch] = []

    def add(self, watch: Watch) -> None:
        self._watches.append(watch)

    def remove(self, watch: Watch) -> None:
        self._watches.remove(watch)


PROCESS_SESSIONS = Sessions()
