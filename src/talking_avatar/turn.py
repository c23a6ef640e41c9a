"""What is said when: turns as a state machine, exact to the sample.

Takes events: a turn was opened, speech pushed, ended, cut, paused; a chunk may be planned, chunks
were dropped by a rewind, a frame was shown.
Gives: the speech of each chunk (`ChunkPlan`), what each frame says (`FramePlan`), and one
`Outcome` for each turn.
Never awaits, never reads a clock (``now`` comes with the event), never knows engines, pictures or
transports.

Positions: a *frame* is 1,000 samples of the session's timeline; chunk ``k`` covers the frames
``k * frames_per_chunk`` and on. A turn's own samples count from 0 at its first one. Speech moves
through four positions of its turn, ``shown <= planned <= pushed``: a rewind gives planned samples
back, and nothing gives shown ones back.

What holds, whatever the order of events (tests/conversation/test_turn.py searches it):

- each pushed sample of a turn that is not cut is shown exactly once, in order;
- after a cut no frame holds a sample of the cut turn;
- each turn has exactly one outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from talking_avatar.engine.base import SAMPLES_PER_FRAME
from talking_avatar.tape import Samples, SpeechTape
from talking_avatar.turn_plan import ChunkPlan, FramePlan, Outcome, Run

PATIENCE_S = 0.5
"""How long a turn whose speech trickles in waits for a full window before it starts, or goes on
after a gap, with what it has. Longer than any look-ahead, shorter than a pause one would notice
as the end of a turn."""


class State(Enum):
    """What the session does now, as its user would say it."""

    IDLE = "idle"
    SPEAKING = "speaking"
    DRAINING = "draining"
    PAUSED = "paused"
    CLOSED = "closed"


@dataclass(slots=True)
class _Turn:
    turn_id: int
    tape: SpeechTape = field(default_factory=SpeechTape)
    planned: int = 0
    shown: int = 0
    flushed: int = 0
    ended: bool = False
    flowing: bool = False
    waiting_since: float = 0.0
    first_push_at: float | None = None
    num_frames: int = 0
    num_stalls: int = 0
    stalled_frames: int = 0
    runs: list[Run] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Samples pushed and not yet planned."""
        return self.tape.end - self.planned

    @property
    def closed(self) -> bool:
        """Whether what is there needs nothing that follows: the turn ended, or was flushed."""
        return self.ended or (self.left > 0 and self.flushed == self.tape.end)

    @property
    def all_planned(self) -> bool:
        return self.ended and not self.left

    @property
    def all_shown(self) -> bool:
        return self.ended and self.shown == self.tape.end

    @property
    def ends_at(self) -> float:
        """Where on the timeline its last shown sample ends, in frames."""
        return self.runs[-1].ends_at if self.runs else 0.0

    def show(self, frame: int, plan: FramePlan) -> None:
        assert plan.start == self.shown, f"turn {self.turn_id}: {plan.start} after {self.shown}"
        self.shown = plan.stop
        self.num_frames += 1
        if self.runs and self.ends_at == frame:
            run = self.runs[-1]
            self.runs[-1] = Run(run.first_frame, run.start, plan.stop)
        else:
            self.runs.append(Run(frame, plan.start, plan.stop))
        self.tape.forget(self.shown)

    def outcome(self, *, interrupted: bool) -> Outcome:
        return Outcome(
            turn_id=self.turn_id,
            interrupted=interrupted,
            handed_out=self.shown,
            num_frames=self.num_frames,
            num_stalls=self.num_stalls,
            stalled_frames=self.stalled_frames,
            runs=tuple(self.runs),
        )


class TurnMachine:
    """All turns of one session.

    Args:
        frames_per_chunk: Frames of one chunk.
        lookahead_samples: Speech after a chunk's end that its window should hold.
    """

    def __init__(self, *, frames_per_chunk: int, lookahead_samples: int) -> None:
        self._frames_per_chunk = frames_per_chunk
        self._lookahead = lookahead_samples
        self._full_window = frames_per_chunk * SAMPLES_PER_FRAME + lookahead_samples
        self._silence = np.zeros(SAMPLES_PER_FRAME, np.float32)
        self._silence.flags.writeable = False
        self._idle = FramePlan(None, self._silence)
        self._turns: dict[int, _Turn] = {}
        self._num_opened = 0
        self._frames: deque[FramePlan] = deque()  # planned and not yet shown
        self._next_frame = 0
        self._outcomes: list[Outcome] = []
        self._must_replan = False
        self._is_paused = False
        self._is_closed = False

    # -- what it knows

    @property
    def state(self) -> State:
        if self._is_closed:
            return State.CLOSED
        if self._is_paused:
            return State.PAUSED
        if any(turn.shown and not turn.all_shown for turn in self._turns.values()):
            return State.SPEAKING
        if any(turn.all_shown and turn.runs for turn in self._turns.values()):
            return State.DRAINING
        return State.IDLE

    @property
    def next_frame(self) -> int:
        """Index of the frame that is shown next."""
        return self._next_frame

    @property
    def next_chunk(self) -> int:
        """Index of the chunk that is planned next."""
        return (self._next_frame + len(self._frames)) // self._frames_per_chunk

    @property
    def turn_ids(self) -> tuple[int, ...]:
        """Turns without an outcome, in their order."""
        return tuple(self._turns)

    @property
    def has_speech_to_plan(self) -> bool:
        """Whether a turn has, or may get, speech that is in no chunk yet and should be said."""
        return not self._is_paused and self._current() is not None

    @property
    def last_speech_frame(self) -> int:
        """Index of the last planned frame that has speech; ``next_frame - 1`` if none has."""
        for back, plan in enumerate(reversed(self._frames)):
            if plan.num_speech:
                return self._next_frame + len(self._frames) - 1 - back
        return self._next_frame - 1

    def first_push_at(self, turn_id: int) -> float:
        """When the first speech of a turn came; for turns that have some, and no outcome yet."""
        pushed = self._turns[turn_id].first_push_at
        assert pushed is not None
        return pushed

    def backlog(self, turn_id: int) -> int:
        """Samples of a turn that were pushed and not yet shown."""
        turn = self._turns.get(turn_id)
        return turn.tape.end - turn.shown if turn else 0

    def takes_speech(self, turn_id: int) -> bool:
        """Whether a turn can still be pushed to."""
        return turn_id in self._turns and not self._turns[turn_id].ended

    # -- events of the speaker

    def open(self) -> int:
        """Begin a turn after all others; give its id: 1, 2, 3..."""
        assert not self._is_closed
        self._num_opened += 1
        self._turns[self._num_opened] = _Turn(self._num_opened)
        return self._num_opened

    def push(self, turn_id: int, samples: Samples, now: float) -> None:
        """Add speech to a turn. Speech for a turn that was cut is dropped."""
        turn = self._turns.get(turn_id)
        if turn is None or not len(samples):
            return
        assert not turn.ended, f"turn {turn_id} takes no more speech"
        if turn.first_push_at is None:
            turn.first_push_at = turn.waiting_since = now
        turn.tape.append(samples)

    def flush(self, turn_id: int) -> None:
        """Say what was pushed without waiting for more; the turn stays open."""
        if turn := self._turns.get(turn_id):
            turn.flushed = turn.tape.end

    def end(self, turn_id: int) -> None:
        """No more speech comes. Harmless when it ended or was cut before."""
        if turn := self._turns.get(turn_id):
            turn.ended = True

    def cut(self, turn_ids: Iterable[int]) -> None:
        """End turns now: nothing of them is shown from here on. A pause ends with the last."""
        for turn_id in turn_ids:
            if turn := self._turns.pop(turn_id, None):
                self._outcomes.append(turn.outcome(interrupted=True))
                self._mute(turn_id)
        self._is_paused = self._is_paused and bool(self._turns)

    def pause(self) -> None:
        """Fall silent; what was planned and not shown is said after `resume`.

        Harmless when there is no turn: the next one is not held back.
        """
        if self._is_paused or not self._turns:
            return
        self._is_paused = True
        for turn in self._turns.values():
            turn.planned, turn.flowing = turn.shown, False
            self._mute(turn.turn_id)

    def resume(self, now: float) -> None:
        """Go on with the sample after the last one shown."""
        self._is_paused = False
        for turn in self._turns.values():
            turn.waiting_since = now

    def close(self) -> None:
        """Cut every turn; nothing begins any more."""
        self.cut(self.turn_ids)
        self._is_closed = True

    def _mute(self, turn_id: int) -> None:
        """Make a turn's planned frames silent. Their pictures may still run on until a rewind."""
        is_over = turn_id not in self._turns
        silent = self._idle if is_over else FramePlan(turn_id, self._silence)
        for at, plan in enumerate(self._frames):
            if plan.turn_id == turn_id:
                self._must_replan |= plan.num_speech > 0
                self._frames[at] = silent

    # -- planning

    @property
    def is_muted(self) -> bool:
        """Whether planned speech was muted and its chunks were not yet dropped."""
        return self._must_replan

    def wants_rewind(self, now: float) -> bool:
        """Whether chunks planned and not yet shown should be planned anew.

        So it is when their speech was muted, and when speech has come that could sound earlier
        than after the silence that was planned ahead.
        """
        if not self._frames:
            return False
        return self._must_replan or self._could_speak_now(now)

    def _could_speak_now(self, now: float) -> bool:
        turn = self._current()
        return (
            turn is not None
            and not self._is_paused
            and not turn.flowing
            and self.last_speech_frame < self._next_frame + len(self._frames) - 1
            and self._can_flow(turn, now)
        )

    def drop_after(self, chunk: int) -> None:
        """Forget what was planned for chunks after ``chunk``; their speech is planned anew.

        Args:
            chunk: The last one that will be shown, at least the one that holds the frame shown
                last.
        """
        keep = (chunk + 1) * self._frames_per_chunk - self._next_frame
        assert keep >= 0, f"chunk {chunk} ends before frame {self._next_frame}"
        while len(self._frames) > keep:
            plan = self._frames.pop()
            if plan.num_speech and plan.turn_id is not None:
                self._turns[plan.turn_id].planned = plan.start
        self._must_replan = False

    def plan(self, now: float, *, is_due: bool, may_be_silent: bool = True) -> ChunkPlan | None:
        """Decide what the next chunk says.

        Args:
            now: The time.
            is_due: Whether it must be planned now, with whatever speech is there.
            may_be_silent: Whether silence may be planned while a turn's speech has not come.

        Returns:
            The chunk, or None: wait for speech, or for the time at which it is due.
        """
        turn = self._current()
        if turn is not None and not self._is_paused:
            turn.flowing = turn.flowing or self._can_flow(turn, now)
            is_enough = turn.closed or turn.left >= self._full_window
            if turn.flowing and not is_enough and not (is_due and may_be_silent):
                return None
            if not turn.flowing and not may_be_silent:
                return None
        index = self.next_chunk
        frames = [self._plan_frame(now) for _ in range(self._frames_per_chunk)]
        self._frames.extend(frames)
        return self._chunk(index, frames, now)

    def _chunk(self, index: int, frames: list[FramePlan], now: float) -> ChunkPlan:
        ahead, num_known = self._peek(now)
        spoken = [plan.turn_id for plan in frames if plan.num_speech and plan.turn_id is not None]
        return ChunkPlan(
            index=index,
            samples=np.concatenate([*(plan.samples for plan in frames), ahead]),
            num_known=len(frames) * SAMPLES_PER_FRAME + num_known,
            speaking=bool(spoken),
            turn_ids=tuple(dict.fromkeys(spoken)),
        )

    def _current(self) -> _Turn | None:
        """The first turn that still has, or may get, speech to plan."""
        return next((turn for turn in self._turns.values() if not turn.all_planned), None)

    def _can_flow(self, turn: _Turn, now: float) -> bool:
        """Whether a turn has enough speech to start, or to go on after a gap.

        A full window: so the look-ahead serves as the buffer against jitter, and speech that
        comes slower than real time makes few long gaps instead of many short ones.
        """
        if turn.closed or turn.left >= self._full_window:
            return True
        return turn.left >= SAMPLES_PER_FRAME and now >= turn.waiting_since + PATIENCE_S

    def _plan_frame(self, now: float) -> FramePlan:
        turn = None if self._is_paused else self._current()
        if turn is None:
            return self._idle
        turn.flowing = turn.flowing or self._can_flow(turn, now)
        num_speech = min(turn.left, SAMPLES_PER_FRAME)
        if turn.flowing and (num_speech == SAMPLES_PER_FRAME or (num_speech and turn.closed)):
            return self._say(turn, num_speech)
        if turn.flowing:
            turn.flowing, turn.waiting_since = False, now
        return FramePlan(turn.turn_id, self._silence) if turn.planned else self._idle

    def _say(self, turn: _Turn, num_speech: int) -> FramePlan:
        start = turn.planned
        samples = turn.tape.read(start, start + num_speech)
        if num_speech < SAMPLES_PER_FRAME:
            samples = np.concatenate([samples, self._silence[num_speech:]])
        turn.planned += num_speech
        return FramePlan(turn.turn_id, samples, start, num_speech)

    def _peek(self, now: float) -> tuple[Samples, int]:
        """Give the look-ahead after the last planned frame, and how much of it is known."""
        ahead = np.zeros(self._lookahead, np.float32)
        at = 0
        for turn in () if self._is_paused else self._turns.values():
            if turn.all_planned:
                continue
            if not turn.flowing and not self._can_flow(turn, now):
                return ahead, at
            part = turn.tape.read(turn.planned, turn.planned + min(turn.left, self._lookahead - at))
            ahead[at : at + len(part)] = part
            at += len(part)
            if at == self._lookahead or not turn.ended:
                return ahead, self._lookahead if turn.closed else at
            at = min(-(-at // SAMPLES_PER_FRAME) * SAMPLES_PER_FRAME, self._lookahead)
        return ahead, self._lookahead

    # -- showing

    def show(self) -> FramePlan:
        """Note that the next planned frame is handed out; give what it says."""
        plan = self._frames.popleft()
        if plan.num_speech and plan.turn_id is not None:
            self._turns[plan.turn_id].show(self._next_frame, plan)
        self._next_frame += 1
        self._must_replan = self._must_replan and bool(self._frames)
        return plan

    def note_stall(self, num_frames: int) -> None:
        """Note that the timeline waited before the frame that comes next."""
        plan = self._frames[0] if self._frames else self._idle
        if turn := self._turns.get(plan.turn_id or 0):
            turn.num_stalls += 1
            turn.stalled_frames += num_frames

    def settle(self, played_frames: float) -> None:
        """Finish turns that were played to their end.

        Args:
            played_frames: How many frames of the timeline are known to have been played.
        """
        for turn in list(self._turns.values()):
            if not turn.all_shown or played_frames < turn.ends_at:
                return
            del self._turns[turn.turn_id]
            self._outcomes.append(turn.outcome(interrupted=False))

    def take_outcomes(self) -> list[Outcome]:
        """Give the outcomes that were not yet taken, in their order."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def __iter__(self) -> Iterator[FramePlan]:
        """The planned frames that were not yet shown."""
        return iter(self._frames)
