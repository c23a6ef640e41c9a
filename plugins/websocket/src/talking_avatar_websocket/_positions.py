"""How far a stream was heard, and how that is known.

Takes what was sent and what viewers report. Gives a `Position` that never passes what was sent, and
never goes back, but where a viewer's word corrects an estimate. Never reads a clock.

The speaker's word counts: it is the one in conversation. Without a speaker, the viewer that is
furthest on counts, so that one that is stuck holds nobody back.
"""

from __future__ import annotations

from dataclasses import dataclass

from talking_avatar import Position

FRESH_S = 0.5
"""A report counts as the viewer's word for that long; clients send ten a second."""
ASSUMED_LAG_S = 0.2
"""How far behind a viewer that reports nothing is taken to be."""


@dataclass(frozen=True, slots=True)
class _Report:
    seconds: float
    at: float


class PlayedPositions:
    """Of one stream."""

    def __init__(self) -> None:
        self._reports: dict[int, _Report | None] = {}
        self._sent_s = 0.0
        self._sent_at = 0.0
        self._acknowledged = 0.0

    @property
    def sent_s(self) -> float:
        """The end of what was handed over."""
        return self._sent_s

    def note_sent(self, end_s: float, now: float) -> None:
        """Media up to ``end_s`` on the timeline was handed over."""
        self._sent_s, self._sent_at = max(self._sent_s, end_s), now

    def join(self, viewer: int) -> None:
        """A viewer gets the stream from now on."""
        self._reports.setdefault(viewer, None)

    def leave(self, viewer: int) -> None:
        """A viewer has gone."""
        self._reports.pop(viewer, None)

    def report(self, viewer: int, seconds: float, now: float) -> None:
        """A viewer says how far it has played; what cannot be is bounded."""
        if viewer in self._reports:
            before = self._reports[viewer]
            least = before.seconds if before is not None else 0.0
            self._reports[viewer] = _Report(min(max(seconds, least), self._sent_s), now)

    def position(self, now: float, speaker: int | None) -> Position | None:
        """Give how far was heard; None while nobody gets the stream."""
        if speaker in self._reports:
            found = self._of(self._reports[speaker], now)
        elif self._reports:
            found = max(
                (self._of(report, now) for report in self._reports.values()),
                key=lambda position: position.seconds,
            )
        else:
            return None
        seconds = max(self._acknowledged, found.seconds)
        if found.source == "acknowledged":
            self._acknowledged = seconds
        return Position(seconds, found.source)

    def _of(self, report: _Report | None, now: float) -> Position:
        if report is not None and now - report.at <= FRESH_S:
            return Position(report.seconds, "acknowledged")
        if report is not None:
            guess = report.seconds + (now - report.at)
        else:
            guess = self._sent_s + (now - self._sent_at) - ASSUMED_LAG_S
        return Position(min(max(guess, 0.0), self._sent_s), "estimated")
