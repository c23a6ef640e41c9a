"""How steady a session runs, in bounded memory however long it lives.

Takes one event a frame, a stall, a missed chunk.
Gives a frozen `SessionStats`. Never reads a clock, never averages a bad minute away.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import exp, log

from talking_avatar.engine.base import FPS, SAMPLE_RATE
from talking_avatar.pacing import Cause, Stall

_MINUTES = 120
"""Minutes whose frame rate is remembered one by one; the worst is kept for ever."""
_RATIO = log(1.02)
"""Width of a histogram bin: percentiles are right to 2 %."""
_FLOOR_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """How often something came late, by its cause; see `pacing.Cause`."""

    generate: int = 0
    decode: int = 0
    hand_over: int = 0
    consumer: int = 0
    blocked_loop: int = 0

    @property
    def total(self) -> int:
        """All causes together."""
        return self.generate + self.decode + self.hand_over + self.consumer + self.blocked_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """What a session did so far.

    Attributes:
        uptime_s: Since its first frame.
        num_frames: Frames that left.
        lateness_p50_ms, lateness_p99_ms, lateness_max_ms: Of frames, after their due time; 0 where
            nothing is due (``clock="unpaced"``).
        missed_chunks: Chunks that were not in host memory when their first frame was due.
        late_frames: Frames handed over more than 10 ms after they were due.
        num_stalls, stalled_s: Times that picture and sound waited together, and their sum.
        skew_s: Sound that left minus picture that left, measured; 0 by construction.
        fps_per_minute: Frames a second of each whole minute, the last 120.
        worst_minute_fps: Of all minutes; None in the first.
        num_discarded: Frames that left with neither reader nor transport there.
        reader_dropped: Frames that a reader who fell behind did not get.
        transport_dropped: Frames that a slow transport did not get.
        num_turns, num_interrupted: Turns that have ended, and those of them that were cut.
    """

    uptime_s: float = 0.0
    num_frames: int = 0
    lateness_p50_ms: float = 0.0
    lateness_p99_ms: float = 0.0
    lateness_max_ms: float = 0.0
    missed_chunks: Causes = field(default_factory=Causes)
    late_frames: Causes = field(default_factory=Causes)
    num_stalls: int = 0
    stalled_s: float = 0.0
    skew_s: float = 0.0
    fps_per_minute: tuple[float, ...] = ()
    worst_minute_fps: float | None = None
    num_discarded: int = 0
    reader_dropped: int = 0
    transport_dropped: int = 0
    num_turns: int = 0
    num_interrupted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCounts:
    """The part of `SessionStats` that costs nothing to read, for those who look often."""

    num_frames: int = 0
    num_turns: int = 0
    num_interrupted: int = 0
    missed_chunks: Causes = field(default_factory=Causes)
    late_frames: Causes = field(default_factory=Causes)
    num_stalls: int = 0
    stalled_s: float = 0.0
    worst_minute_fps: float | None = None


class Histogram:
    """Durations in bins that grow by 2 %: about 1,000 bins from 1 us to 10 minutes."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self.num = 0
        self.max_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one duration; below 1 us is 0."""
        self.num += 1
        self.max_s = max(self.max_s, duration_s)
        self._bins[
            int(log(duration_s / _FLOOR_S) / _RATIO) + 1 if duration_s > _FLOOR_S else 0
        ] += 1

    def percentile(self, percent: float) -> float:
        """Give the duration that ``percent`` of all do not exceed, in seconds; 0 if none."""
        wanted = self.num * percent / 100
        seen = 0
        for bin_, count in sorted(self._bins.items()):
            seen += count
            if seen >= wanted:
                return min(self.max_s, _FLOOR_S * exp(bin_ * _RATIO)) if bin_ else 0.0
        return 0.0


class StatsRecorder:
    """Counts for one session."""

    def __init__(self) -> None:
        self.num_discarded = 0
        self.reader_dropped = 0
        self.transport_dropped = 0
        self.num_turns = 0
        self.num_interrupted = 0
        self._lateness = Histogram()
        self._missed: Counter[Cause] = Counter()
        self._late: Counter[Cause] = Counter()
        self._num_stalls = 0
        self._stalled_frames = 0
        self._num_frames = 0
        self._num_samples = 0
        self._started: float | None = None
        self._last = 0.0
        self._num_minutes = 0
        self._minute_frames = 0
        self._minutes: deque[float] = deque(maxlen=_MINUTES)
        self._worst: float | None = None

    def left(self, now: float, num_samples: int) -> None:
        """A frame with its sound left."""
        if self._started is None:
            self._started = now
        while now >= self._started + (self._num_minutes + 1) * 60:
            self._end_minute()
        self._last = now
        self._num_frames += 1
        self._num_samples += num_samples
        self._minute_frames += 1

    def _end_minute(self) -> None:
        fps = self._minute_frames / 60
        self._minutes.append(fps)
        self._worst = fps if self._worst is None else min(self._worst, fps)
        self._minute_frames = 0
        self._num_minutes += 1

    def taken(self, lateness_s: float, cause: Cause | None) -> None:
        """A frame that was due was taken by its consumer."""
        self._lateness.add(max(0.0, lateness_s))
        if cause is not None:
            self._late[cause] += 1

    def missed(self, cause: Cause) -> None:
        """A chunk was not there when it was due."""
        self._missed[cause] += 1

    def stalled(self, stall: Stall) -> None:
        """The timeline waited."""
        self._num_stalls += 1
        self._stalled_frames += stall.num_frames

    def counts(self) -> SessionCounts:
        """Give the counts so far, without the percentiles."""
        return SessionCounts(
            num_frames=self._num_frames,
            num_turns=self.num_turns,
            num_interrupted=self.num_interrupted,
            missed_chunks=_causes(self._missed),
            late_frames=_causes(self._late),
            num_stalls=self._num_stalls,
            stalled_s=self._stalled_frames / FPS,
            worst_minute_fps=self._worst,
        )

    def snapshot(self) -> SessionStats:
        """Give the counts so far."""
        return SessionStats(
            uptime_s=0.0 if self._started is None else self._last - self._started,
            num_frames=self._num_frames,
            lateness_p50_ms=self._lateness.percentile(50) * 1e3,
            lateness_p99_ms=self._lateness.percentile(99) * 1e3,
            lateness_max_ms=self._lateness.max_s * 1e3,
            missed_chunks=_causes(self._missed),
            late_frames=_causes(self._late),
            num_stalls=self._num_stalls,
            stalled_s=self._stalled_frames / FPS,
            skew_s=self._num_samples / SAMPLE_RATE - self._num_frames / FPS,
            fps_per_minute=tuple(self._minutes),
            worst_minute_fps=self._worst,
            num_discarded=self.num_discarded,
            reader_dropped=self.reader_dropped,
            transport_dropped=self.transport_dropped,
            num_turns=self.num_turns,
            num_interrupted=self.num_interrupted,
        )


def _causes(counts: Counter[Cause]) -> Causes:
    return Causes(
        generate=counts["generate"],
        decode=counts["decode"],
        hand_over=counts["hand_over"],
        consumer=counts["consumer"],
        blocked_loop=counts["blocked_loop"],
    )
