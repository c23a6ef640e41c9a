"""When each frame is due, how far ahead to work, and what was late and why.

Takes times on the loop's clock, as events.
Gives absolute deadlines, the causes of what came late, and the chunk to rewind to.
Never sleeps, never reads a clock, never knows what is said.

One grid for the whole session: ``due(i) = start + (i + stalled) / 24``, where ``stalled`` counts
whole frames that the timeline had to wait. Nothing is ever added up from sleeps, so nothing drifts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, TypeAlias

from talking_avatar.engine.base import FPS, EngineInfo, FrameBlock

LATE_S = 0.010
"""A frame handed over more than this after its due time is late. A frame that becomes ready within
it goes out at once and the grid stays; after it, the timeline stalls by whole frames."""
MARGIN_S = 0.008
"""Kept between the time by which a chunk should be ready and the time at which it is due: the
scheduling noise of a busy two-core machine, without costing a turn a frame of latency."""

Cause: TypeAlias = Literal["generate", "decode", "hand_over", "consumer", "blocked_loop"]
"""Why something came late: the engine's generating or decoding, this package's own handing over,
whoever takes the frames, or an event loop (or GIL) that something else held."""

_REMEMBERED = 32
"""Chunks by which the engine's pace is judged."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The timeline waited before a frame.

    Attributes:
        frame: The frame that was not there.
        num_frames: How long, in frames: a whole number, so that the grid stays.
    """

    frame: int
    num_frames: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an engine is: seconds that all but its slowest chunks take."""

    step_s: float
    decode_s: float


class Pacer:
    """The grid of one session.

    Args:
        info: Of the engine.
        start: Time at which frame 0 is due.
    """

    def __init__(self, info: EngineInfo, *, start: float) -> None:
        self._info = info
        self._start = start
        self._stalled = 0
        self._steps: deque[float] = deque(maxlen=_REMEMBERED)
        self._decodes: deque[float] = deque(maxlen=_REMEMBERED)
        self._pace = Pace(info.step_s, info.decode_s)

    def begin(self, now: float) -> None:
        """Set the grid: frame 0 is due now."""
        self._start = now

    @property
    def stalled_frames(self) -> int:
        """Frames that the timeline has waited in all."""
        return self._stalled

    @property
    def pace(self) -> Pace:
        """What the engine is expected to take, from what it took lately."""
        return self._pace

    def due(self, frame: int) -> float:
        """Time at which a frame should be handed over."""
        return self._start + (frame + self._stalled) / FPS

    def plan_by(self, chunk: int) -> float:
        """Time at which a chunk must be submitted to be ready when it is due."""
        first = chunk * self._info.frames_per_chunk
        return self.due(first) - self._pace.step_s - self._pace.decode_s - MARGIN_S

    def stall(self, frame: int, now: float) -> Stall | None:
        """Let a frame that became ready only now, at ``now``, take its place on the grid.

        Returns:
            The stall; None where it is in time, or late by no more than `LATE_S`.
        """
        num_frames = ceil((now - self.due(frame) - LATE_S) * FPS)
        if num_frames <= 0:
            return None
        self._stalled += num_frames
        return Stall(frame, num_frames)

    @property
    def refill_chunks(self) -> int:
        """Chunks that must be ready for a timeline that waits to go on.

        One; but the whole pipeline where the engine is slower than real time: so speech pauses
        a few times for longer, not between every two syllables. It costs an engine at 90 % of
        real time and three chunks deep 2.4 % of its pace, and makes 40 % fewer pauses.
        """
        is_slow = self._pace.step_s > self._info.chunk_s
        return self._info.pipeline_depth if is_slow else 1

    def observe(self, block: FrameBlock, *, service_s: float) -> None:
        """Learn from a finished chunk.

        Args:
            block: Its frames, with the engine's own account of its work.
            service_s: From its submission, or from the chunk before being ready if that was
                later, to its being ready.
        """
        decode_s = min(block.decode_s, service_s)
        self._steps.append(max(block.generate_s, service_s - decode_s))
        self._decodes.append(decode_s)
        self._pace = Pace(self._slow(self._steps), self._slow(self._decodes))

    @staticmethod
    def _slow(times: deque[float]) -> float:
        """All but the slowest tenth take less."""
        return sorted(times)[len(times) * 9 // 10]

    def keep(self, *, next_frame: int, now: float, unfinished: tuple[int, ...]) -> int:
        """Choose the last chunk to show before something new: the earliest that makes no stall.

        Args:
            next_frame: The frame that is handed over next.
            now: The time.
            unfinished: Chunks that the engine is still working on, oldest first.

        Returns:
            Index of the chunk to rewind to; -1 is before the first. Never before the chunk that
            is on the screen, never so late that more than ``info.barge_in_frames`` frames of old
            picture follow (more where the engine has become slower than it said).
        """
        per_chunk = self._info.frames_per_chunk
        kept = -(-next_frame // per_chunk) - 1
        latest = max(kept, (next_frame + self._run_on_frames) // per_chunk - 1)
        while kept < latest and self._ready_after(kept, now, unfinished) > self._first_due(
            kept + 1
        ):
            kept += 1
        return kept

    @property
    def _run_on_frames(self) -> int:
        """``info.barge_in_frames``, or what an engine slower than it said makes of it."""
        slower = replace(self._info, step_s=self._pace.step_s, decode_s=self._pace.decode_s)
        return max(self._info.barge_in_frames, slower.barge_in_frames)

    def _first_due(self, chunk: int) -> float:
        return self.due(chunk * self._info.frames_per_chunk)

    def _ready_after(self, kept: int, now: float, unfinished: tuple[int, ...]) -> float:
        """When the chunk after ``kept`` would be ready if it were submitted now.

        The engine first finishes what is kept; a step that will be dropped may still be running.
        """
        num_before = sum(chunk <= kept for chunk in unfinished) or min(len(unfinished), 1)
        steps_s = (num_before + 1) * self._pace.step_s
        return now + steps_s + self._pace.decode_s + MARGIN_S


def late_cause(*, due: float, woken: float, taken: float, was_behind: bool) -> Cause | None:
    """Say why a frame was late, if it was.

    Args:
        due: When it should have been handed over.
        woken: When the loop ran us for it.
        taken: When the reader or transport took it.
        was_behind: Whether the taker was still busy with a frame before.

    Returns:
        The cause; None if it was in time.
    """
    if taken - due <= LATE_S:
        return None
    if woken - due > LATE_S:
        return "blocked_loop"
    return "consumer" if was_behind else "hand_over"


def missed_cause(*, due: float, ready: float, decode_s: float, was_blocked: bool) -> Cause | None:
    """Say why a chunk was not in host memory when its first frame was due, if it was not.

    Args:
        due: When its first frame was due.
        ready: When its frames were in host memory.
        decode_s: The decoder's part of the work.
        was_blocked: Whether the loop was held while the chunk was planned or made.

    Returns:
        The cause; None if it was in time.
    """
    if ready <= due:
        return None
    if was_blocked:
        return "blocked_loop"
    return "decode" if ready - decode_s <= due else "generate"
