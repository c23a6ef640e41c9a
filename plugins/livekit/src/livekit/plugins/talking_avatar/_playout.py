"""When sound that was handed to a queue is heard.

Takes what is about to be handed to a queue that plays in real time, and the time.
Gives how much silence must go before it, how much of it is better left out, when it will be heard,
and how far the timeline was heard. Never awaits, never reads a clock.

The queue is kept `LEAD_S` deep, so that a timer that fires late makes no gap. After a stall it has
run dry: it is filled with silence again, and the picture is shown when its own sound is heard, so
that both stay together whatever the depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from talking_avatar import Frame

SAMPLE_RATE = 24_000
LEAD_S = 0.06
"""Depth of the queue when a frame is handed over. A frame is 42 ms long, and a busy machine runs
timers some 10 ms late."""
MOST_LEAD_S = LEAD_S + 0.02
"""Above it silence between turns is left out: depth is delay."""
_DRY_S = 0.005
"""Less than this is too little to be played without a gap."""


@dataclass(frozen=True, slots=True)
class Handing:
    """How one frame goes into the queue.

    Attributes:
        num_silent: Samples of silence to hand over before its sound.
        num_left_out: Samples of its sound not to hand over; only ever of silence.
        heard_at: When its first sample is heard, and its picture should be seen.
    """

    num_silent: int
    num_left_out: int
    heard_at: float


class PlayoutClock:
    """Of one queue."""

    def __init__(self) -> None:
        self._dry_at = -inf
        self._end_pts = 0.0
        self._heard_pts = 0.0

    def depth_s(self, now: float) -> float:
        """Give how much sound waits in the queue."""
        return max(0.0, self._dry_at - now)

    def hand_over(self, frame: Frame, now: float) -> Handing:
        """Note that a frame is handed over now; give how."""
        num_silent = num_left_out = 0
        depth_s, num_samples = self.depth_s(now), len(frame.audio)
        if depth_s < _DRY_S:
            num_silent = round((LEAD_S - depth_s) * SAMPLE_RATE)
        elif depth_s > MOST_LEAD_S and not frame.speaking:
            num_left_out = min(num_samples, round((depth_s - LEAD_S) * SAMPLE_RATE))
        self.position_s(now)
        heard_at = now + depth_s + num_silent / SAMPLE_RATE
        self._dry_at = heard_at + (num_samples - num_left_out) / SAMPLE_RATE
        self._end_pts = frame.pts + num_samples / SAMPLE_RATE
        return Handing(num_silent, num_left_out, heard_at)

    def position_s(self, now: float) -> float:
        """Give the end of what was heard, in seconds of the timeline. Never goes back."""
        self._heard_pts = max(self._heard_pts, self._end_pts - self.depth_s(now))
        return self._heard_pts

    def clear(self, now: float) -> None:
        """Note that what waits in the queue is dropped."""
        self._end_pts = self.position_s(now)
        self._dry_at = now
