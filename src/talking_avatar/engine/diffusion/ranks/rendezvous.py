"""Where ranks meet: each brings a value under a label and takes away all values.

Takes: one call of `exchange` per rank and collective, from the ranks' own threads; what became of
each rank. Gives: the values in the order of ranks, or `RankStopped` within a second once any rank
failed or went another way. Never: computes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from talking_avatar.errors import EngineError


class RankStopped(EngineError):  # noqa: N818
    """This rank stopped because another failed; not itself an error's origin."""


class RankFailed(EngineError):  # noqa: N818
    """A rank failed; ``__cause__`` has its own error where it raised one.

    Attributes:
        rank: The rank where it began.
    """

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(slots=True)
class _Meeting:
    """One collective: what each rank brought."""

    labels: dict[int, str] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)


class Rendezvous:
    """Meetings of a fixed number of ranks, in lockstep, for one piece of work."""

    def __init__(self, world_size: int, *, timeout_s: float = 30.0) -> None:
        """Make one.

        Args:
            world_size: Number of ranks.
            timeout_s: How long the ranks that came wait for one that neither comes nor ends.
        """
        self.world_size = world_size
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._meetings_of = [0] * world_size
        self._meeting = _Meeting()
        self._ended: set[int] = set()
        self._failure: RankFailed | None = None

    @property
    def failure(self) -> RankFailed | None:
        """What broke it, if anything did."""
        return self._failure

    def exchange(self, rank: int, label: str, value: Any) -> list[Any]:
        """Meet all other ranks.

        Args:
            rank: Who calls.
            label: What for; must be the same on every rank.
            value: What the others get.

        Returns:
            All ranks' values, in the order of ranks.

        Raises:
            RankStopped: A rank failed, ended early, came for something else, or never came.
        """
        with self._changed:
            self._stop_if_failed()
            meeting = self._meeting
            meeting.labels[rank], meeting.values[rank] = label, value
            self._meetings_of[rank] += 1
            if len(meeting.values) == self.world_size:
                self._close(meeting)
            else:
                self._blame_ended()
                self._wait_for(meeting)
            self._stop_if_failed()
        return [meeting.values[r] for r in range(self.world_size)]

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """Say that a rank's work is over, well or with an error."""
        with self._changed:
            self._ended.add(rank)
            if error is not None and not isinstance(error, RankStopped):
                failure = RankFailed(f"rank {rank} of {self.world_size}: {error!r}", rank=rank)
                failure.__cause__ = error
                self._fail(failure)
            else:
                self._blame_ended()

    def _close(self, meeting: _Meeting) -> None:
        self._meeting = _Meeting()
        labels = [meeting.labels[r] for r in range(self.world_size)]
        usual = max(labels, key=labels.count)
        odd = [r for r, label in enumerate(labels) if label != usual]
        if odd:
            self._fail(
                RankFailed(
                    f"rank {odd[0]} came to {labels[odd[0]]!r} as its meeting "
                    f"{self._meetings_of[odd[0]]} while others came to {usual!r}: "
                    f"it skipped or added a collective",
                    rank=odd[0],
                )
            )
        self._changed.notify_all()

    def _wait_for(self, meeting: _Meeting) -> None:
        deadline = time.monotonic() + self._timeout_s
        while self._meeting is meeting and self._failure is None:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = [r for r in range(self.world_size) if r not in meeting.values]
                self._fail_missing(meeting, missing, f"did not come within {self._timeout_s:g} s")
                return
            self._changed.wait(left)

    def _blame_ended(self) -> None:
        """Fail if nobody works any more and some wait for ranks that are over.

        The fewer are to blame: one that came alone added a meeting, one that is missing alone
        skipped it.
        """
        meeting = self._meeting
        came, missing = sorted(meeting.values), sorted(self._ended)
        if not came or len(came) + len(missing) < self.world_size:
            return
        if len(came) >= len(missing):
            self._fail_missing(meeting, missing, "ended its work without it")
            return
        names = ", ".join(map(str, came))
        self._fail(
            RankFailed(
                f"rank {names} added {meeting.labels[came[0]]!r}: it came to a meeting "
                f"{self._meetings_of[came[0]]} when the others had ended their work",
                rank=came[0],
            )
        )

    def _fail_missing(self, meeting: _Meeting, missing: list[int], why: str) -> None:
        label = next(iter(meeting.labels.values()))
        names = ", ".join(map(str, missing))
        self._fail(
            RankFailed(
                f"rank {names} skipped {label!r}: {why}, after "
                f"{self._meetings_of[missing[0]]} meetings; ranks "
                f"{', '.join(map(str, sorted(meeting.values)))} wait in it",
                rank=missing[0],
            )
        )

    def _fail(self, failure: RankFailed) -> None:
        if self._failure is None:
            self._failure = failure
        self._changed.notify_all()

    def _stop_if_failed(self) -> None:
        if self._failure is not None:
            raise RankStopped(f"stopped: {self._failure}")
