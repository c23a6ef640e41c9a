"""Who waits for which turn, and what they get: each exactly one `TurnResult`, or the failure.

Takes the turn machine's outcomes and the times of each turn's first frame.
Never awaits, never decides when a turn is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from talking_avatar.cost import SessionTally, Usage
from talking_avatar.engine.base import FPS, SAMPLE_RATE
from talking_avatar.session.pipeline import Chunk
from talking_avatar.stats import StatsRecorder
from talking_avatar.turn_plan import Outcome
from talking_avatar.types import Position, TurnLatency, TurnResult


@dataclass(slots=True, eq=False)
class _Waiting:
    """One turn that has no result yet."""

    result: asyncio.Future[TurnResult]
    voice_agent_s: float | None
    opened: SessionTally
    latency: TurnLatency | None = None
    first_pts: float = 0.0
    first_frame_at: float = 0.0


class Results:
    """All turns of a session that have no result yet.

    Args:
        stats: Told of every turn that is over.
        tally: Gives what the session has used so far.
        usage_of: Says such a tally in hours and money.
    """

    def __init__(
        self,
        stats: StatsRecorder,
        tally: Callable[[], SessionTally],
        usage_of: Callable[[SessionTally], Usage],
    ) -> None:
        self._stats = stats
        self._tally = tally
        self._usage_of = usage_of
        self._charged = SessionTally()  # when the last turn was over
        self._waiting: dict[int, _Waiting] = {}

    def __bool__(self) -> bool:
        """Whether any turn has no result yet."""
        return bool(self._waiting)

    def expect(
        self, turn_id: int, result: asyncio.Future[TurnResult], voice_agent_s: float | None
    ) -> None:
        """Set ``result`` when the turn is over."""
        self._waiting[turn_id] = _Waiting(result, voice_agent_s, self._tally())

    def note_first_frame(
        self, turn_id: int, chunk: Chunk, *, first_push: float, pts: float, now: float
    ) -> None:
        """A turn's first frame is handed out now."""
        waiting = self._waiting[turn_id]
        made_s = chunk.ready - chunk.planned
        decode_s = min(chunk.decode_s, made_s)
        waiting.first_pts, waiting.first_frame_at = pts, now
        waiting.latency = TurnLatency(
            voice_agent_s=waiting.voice_agent_s,
            conditioning_s=chunk.planned - first_push,
            generate_s=made_s - decode_s,
            decode_s=decode_s,
            hand_out_s=now - chunk.ready,
        )

    def note_played(self, position: Position, now: float) -> None:
        """Complete the latency of turns whose first frame the far end has begun to play."""
        for waiting in self._waiting.values():
            latency = waiting.latency
            if latency and latency.transport_s is None and position.seconds > waiting.first_pts:
                waiting.latency = replace(latency, transport_s=now - waiting.first_frame_at)

    def finish(
        self, outcomes: list[Outcome], position: Position, error: Exception | None
    ) -> list[TurnResult]:
        """Give everyone who waits for these turns their result, or the error.

        Args:
            outcomes: Of turns that are over.
            position: Played on the timeline.
            error: What ended the session, if anything did.
        """
        results = [self._result_of(outcome, position) for outcome in outcomes]
        for result in results:
            waiting = self._waiting.pop(result.turn_id)
            self._stats.num_turns += 1
            self._stats.num_interrupted += result.interrupted
            if waiting.result.done():
                continue  # cancelled together with its loop
            if error is not None:
                waiting.result.set_exception(error)
            else:
                waiting.result.set_result(result)
        return results

    def _usage(self, turn_id: int) -> Usage:
        """Charge a turn from its opening, or from the end of the turn before it if that is later.

        So no time is charged to two turns, and what passes between turns to none.
        """
        now, opened = self._tally(), self._waiting[turn_id].opened
        begin = opened if opened.wall_ns >= self._charged.wall_ns else self._charged
        self._charged = now
        return self._usage_of(now.since(begin))

    def _result_of(self, outcome: Outcome, position: Position) -> TurnResult:
        played, source = outcome.handed_out, position.source
        if outcome.interrupted:
            played = min(played, outcome.samples_played_at(position.seconds * FPS))
        elif position.seconds * FPS < outcome.ends_at - 1e-6:
            source = "handed_out"  # all of it: more than the far end has told of
        latency = self._waiting[outcome.turn_id].latency
        return TurnResult(
            turn_id=outcome.turn_id,
            played_s=played / SAMPLE_RATE,
            source=source,
            interrupted=outcome.interrupted,
            first_frame_s=latency.pipeline_s if latency else None,
            num_frames=outcome.num_frames,
            stalls=outcome.num_stalls,
            stalled_s=outcome.stalled_frames / FPS,
            latency=latency,
            usage=self._usage(outcome.turn_id),
        )
