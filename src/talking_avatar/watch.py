"""What may be known of a session from outside while it runs.

Takes a session's meter and statistics. Gives a frozen `Snapshot` at any time, from any thread.
Never holds a frame, a sample or a word of what is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from uuid import uuid4

from talking_avatar.cost import Meter, SessionTally, Usage
from talking_avatar.stats import SessionCounts, StatsRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One session at one moment.

    Attributes:
        tally: Exact sums of what it used.
        usage: The same in hours and money.
        counts: How it runs.
        engine_fps: Frames a second that its engine could make; None before the first.
        is_at_or_below_real_time: Whether that is no more than are shown.
        step_counts, step_sum_ns: The histogram of `cost.meter.STEP_BOUNDS_S`.
    """

    tally: SessionTally
    usage: Usage
    counts: SessionCounts
    engine_fps: float | None
    is_at_or_below_real_time: bool
    step_counts: tuple[int, ...]
    step_sum_ns: int


class Watch:
    """A view of one session.

    Args:
        engine: Its engine's name.
        meter, stats: Of the session.
        now: Its clock.
        tags: What its caller wants to find it by: customer, agent...

    Attributes:
        session_id: Unique everywhere.
        began: When, by the wall clock; nothing is computed from it but days.
    """

    def __init__(
        self,
        engine: str,
        meter: Meter,
        stats: StatsRecorder,
        now: Callable[[], float],
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.session_id = uuid4().hex
        self.began = datetime.now(UTC)
        self.engine = engine
        self.tags = MappingProxyType(dict(tags or {}))
        self.meter = meter
        self._stats = stats
        self._now = now

    def snapshot(self) -> Snapshot:
        """Look at the session."""
        meter = self.meter
        tally = meter.tally(self._now())
        return Snapshot(
            tally=tally,
            usage=meter.usage_of(tally),
            counts=self._stats.counts(),
            engine_fps=meter.engine_fps,
            is_at_or_below_real_time=meter.is_at_or_below_real_time,
            step_counts=tuple(meter.steps.counts),
            step_sum_ns=meter.steps.sum_ns,
        )
