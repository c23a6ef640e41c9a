"""The turn machine: by hand where a rule has a name, by search where any order may come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from talking_avatar.engine.base import SAMPLES_PER_FRAME
from talking_avatar.tape import SpeechTape
from talking_avatar.turn import PATIENCE_S, State, TurnMachine
from talking_avatar.turn_plan import FramePlan, Outcome, Run

LOOKAHEAD = 2_880


def speech(num: int, start: int = 0) -> np.ndarray:
    """Samples that say where they stand: 1, 2, 3..."""
    return np.arange(start + 1, start + num + 1, dtype=np.float32)


def machine(frames_per_chunk: int = 1) -> TurnMachine:
    return TurnMachine(frames_per_chunk=frames_per_chunk, lookahead_samples=LOOKAHEAD)


def show_all(turns: TurnMachine, now: float = 0.0) -> list[FramePlan]:
    """Plan as far as speech reaches, and show it."""
    shown = []
    while turns.has_speech_to_plan and turns.plan(now, is_due=False, may_be_silent=False):
        pass
    while turns.last_speech_frame >= turns.next_frame:
        shown.append(turns.show())
        turns.settle(turns.next_frame)
    return shown


def said(frames: list[FramePlan], turn_id: int) -> list[float]:
    return [
        float(sample)
        for frame in frames
        if frame.turn_id == turn_id
        for sample in frame.samples[: frame.num_speech]
    ]


# -- windows


def test_a_turn_is_said_whole_and_its_last_frame_is_filled_with_silence() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(2_300), 0.0)
    turns.end(turn)
    frames = show_all(turns)
    assert said(frames, turn) == list(speech(2_300))
    assert [frame.num_speech for frame in frames] == [1_000, 1_000, 300]
    assert not frames[-1].samples[300:].any()
    [outcome] = turns.take_outcomes()
    assert (outcome.handed_out, outcome.num_frames, outcome.interrupted) == (2_300, 3, False)


def test_the_next_turn_begins_with_a_frame_of_its_own() -> None:
    turns = machine(4)
    for num in (500, 1_500):
        turn = turns.open()
        turns.push(turn, speech(num), 0.0)
        turns.end(turn)
    chunk = turns.plan(0.0, is_due=False)
    assert chunk is not None
    assert chunk.turn_ids == (1, 2)
    assert [frame.turn_id for frame in turns] == [1, 2, 2, None]


def test_a_window_waits_for_its_lookahead_until_it_is_due() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(1_000 + LOOKAHEAD), 0.0)
    assert turns.plan(0.0, is_due=False)
    assert turns.plan(0.0, is_due=False) is None
    late = turns.plan(0.0, is_due=True)
    assert late is not None
    assert late.speaking
    assert late.num_known == LOOKAHEAD
    assert not late.samples[LOOKAHEAD:].any()


def test_what_follows_the_end_of_a_turn_is_known_silence_or_the_next_turn() -> None:
    turns = machine()
    first, second = turns.open(), turns.open()
    turns.push(first, speech(1_200), 0.0)
    turns.end(first)
    turns.push(second, speech(800, start=5_000), 0.0)
    turns.end(second)
    chunk = turns.plan(0.0, is_due=False)
    assert chunk is not None
    assert chunk.num_known == len(chunk.samples) == 1_000 + LOOKAHEAD
    assert chunk.samples[1_199] == 1_200
    assert not chunk.samples[1_200:2_000].any()
    assert list(chunk.samples[2_000:2_800]) == list(speech(800, start=5_000))


def test_a_turn_that_may_yet_speak_makes_the_lookahead_unknown() -> None:
    turns = machine()
    turns.open()
    chunk = turns.plan(0.0, is_due=True)
    assert chunk is not None
    assert (chunk.num_known, chunk.speaking) == (1_000, False)


def test_flush_says_what_is_there_and_the_turn_goes_on() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(1_400), 0.0)
    turns.flush(turn)
    frames = show_all(turns)
    assert [frame.num_speech for frame in frames] == [1_000, 400]
    turns.push(turn, speech(600, start=1_400), 1.0)
    turns.end(turn)
    frames += show_all(turns)
    assert said(frames, turn) == list(speech(2_000))


def test_a_full_lookahead_of_a_flushed_turn_is_known() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(1_000 + LOOKAHEAD), 0.0)
    turns.flush(turn)
    chunk = turns.plan(0.0, is_due=False)
    assert chunk is not None
    assert chunk.num_known == 1_000 + LOOKAHEAD


# -- gaps


def test_speech_that_runs_dry_leaves_a_gap_and_goes_on_where_it_stopped() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(1_000 + LOOKAHEAD), 0.0)
    for _ in range(6):
        turns.plan(0.0, is_due=True)
    frames = [turns.show() for _ in range(6)]
    assert [frame.num_speech for frame in frames] == [1_000] * 3 + [0] * 3
    assert frames[4].turn_id == turn
    turns.push(turn, speech(4_000, start=3_880), 0.2)
    turns.end(turn)
    frames += show_all(turns)
    assert said(frames, turn) == list(speech(7_880))
    [outcome] = turns.take_outcomes()
    assert outcome.runs == (Run(0, 0, 3_000), Run(6, 3_000, 7_880))


def test_a_gap_ends_only_with_a_full_window_or_out_of_patience() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(1_500), 0.0)
    silent = turns.plan(PATIENCE_S - 0.01, is_due=True)
    assert silent is not None
    assert not silent.speaking
    assert not turns.wants_rewind(PATIENCE_S - 0.01)
    assert turns.wants_rewind(PATIENCE_S)
    turns.drop_after(-1)
    late = turns.plan(PATIENCE_S, is_due=True)
    assert late is not None
    assert late.speaking


def test_an_unpaced_turn_waits_for_its_speech() -> None:
    turns = machine()
    turn = turns.open()
    assert turns.plan(0.0, is_due=False, may_be_silent=False) is None
    turns.push(turn, speech(1_000 + LOOKAHEAD), 0.0)
    assert turns.plan(0.0, is_due=False, may_be_silent=False)
    assert turns.plan(9.0, is_due=True, may_be_silent=False) is None


# -- cuts


def test_a_cut_mutes_what_was_planned_and_gives_one_outcome() -> None:
    turns = machine(4)
    turn = turns.open()
    turns.push(turn, speech(9_000), 0.0)
    turns.end(turn)
    turns.plan(0.0, is_due=False)
    turns.plan(0.0, is_due=False)
    turns.show()
    turns.cut([turn])
    turns.cut([turn])
    assert turns.is_muted
    assert turns.wants_rewind(0.0)
    assert all(frame.turn_id is None and not frame.num_speech for frame in turns)
    [outcome] = turns.take_outcomes()
    assert (outcome.handed_out, outcome.interrupted) == (1_000, True)
    assert turns.take_outcomes() == []
    turns.push(turn, speech(10), 0.0)
    turns.flush(turn)
    turns.end(turn)
    assert turns.turn_ids == ()


def test_cutting_one_turn_lets_the_next_keep_what_is_planned_of_it() -> None:
    turns = machine(4)
    first, second = turns.open(), turns.open()
    turns.push(first, speech(2_000), 0.0)
    turns.end(first)
    turns.push(second, speech(5_000), 0.0)
    turns.end(second)
    turns.plan(0.0, is_due=False)
    turns.cut([first])
    turns.drop_after(0)
    frames = show_all(turns)
    assert said(frames, second) == list(speech(5_000))
    assert [frame.turn_id for frame in frames[:3]] == [None, None, second]


def test_a_rewind_gives_planned_speech_back() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(4_000), 0.0)
    turns.end(turn)
    for _ in range(3):
        turns.plan(0.0, is_due=False)
    turns.drop_after(0)
    assert turns.next_chunk == 1
    assert said(show_all(turns), turn) == list(speech(4_000))


def test_a_mute_that_was_overtaken_asks_for_no_rewind() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(1_000), 0.0)
    turns.end(turn)
    turns.plan(0.0, is_due=False)
    turns.cut([turn])
    turns.show()
    turns.plan(0.0, is_due=False)
    assert not turns.wants_rewind(0.0)


def test_after_a_cut_nothing_that_was_pushed_later_counts() -> None:
    turns = machine()
    turn = turns.open()
    turns.cut([turn])
    turns.push(turn, speech(100), 0.0)
    assert turns.backlog(turn) == 0
    assert not turns.takes_speech(turn)


# -- pauses


def test_pause_is_silent_and_resume_goes_on_with_the_next_sample() -> None:
    turns = machine()
    turn = turns.open()
    turns.push(turn, speech(5_000), 0.0)
    turns.end(turn)
    for _ in range(3):
        turns.plan(0.0, is_due=False)
    frames = [turns.show()]
    turns.pause()
    turns.pause()
    assert turns.state is State.PAUSED
    assert not turns.has_speech_to_plan
    frames += [turns.show(), turns.show()]
    turns.plan(0.0, is_due=True)
    frames.append(turns.show())
    assert [frame.num_speech for frame in frames] == [1_000, 0, 0, 0]
    turns.resume(1.0)
    frames += show_all(turns)
    assert said(frames, turn) == list(speech(5_000))


def test_a_pause_between_turns_holds_nothing_back() -> None:
    turns = machine()
    turns.pause()
    assert turns.state is State.IDLE
    turn = turns.open()
    turns.pause()
    turns.cut([turn])
    assert turns.state is State.IDLE


# -- state and results


def test_states() -> None:
    turns = machine()
    assert turns.state is State.IDLE
    turn = turns.open()
    turns.push(turn, speech(1_500), 0.0)
    turns.end(turn)
    turns.plan(0.0, is_due=False)
    turns.plan(0.0, is_due=False)
    turns.show()
    assert turns.state is State.SPEAKING
    turns.show()
    assert turns.state is State.DRAINING
    turns.settle(1.4)
    assert turns.state is State.DRAINING
    turns.settle(1.5)
    assert turns.state is State.IDLE
    turns.close()
    assert turns.state is State.CLOSED


def test_empty_turns_finish_in_their_order() -> None:
    turns = machine()
    first, second = turns.open(), turns.open()
    turns.end(second)
    turns.settle(0)
    assert turns.take_outcomes() == []
    turns.end(first)
    turns.settle(0)
    assert [outcome.turn_id for outcome in turns.take_outcomes()] == [first, second]


def test_stalls_are_counted_for_the_turn_that_waits() -> None:
    turns = machine()
    turns.note_stall(9)
    turn = turns.open()
    turns.push(turn, speech(1_000), 0.5)
    assert turns.first_push_at(turn) == 0.5
    turns.end(turn)
    turns.plan(0.0, is_due=False)
    turns.note_stall(3)
    turns.show()
    turns.settle(9)
    [outcome] = turns.take_outcomes()
    assert (outcome.num_stalls, outcome.stalled_frames) == (1, 3)


@pytest.mark.parametrize(
    ("at", "played"),
    [(0, 0), (9.9, 0), (10.5, 500), (12, 2_000), (14, 2_000), (20.25, 2_250), (99, 3_000)],
)
def test_a_position_on_the_timeline_is_a_position_in_the_turn(at: float, played: int) -> None:
    outcome = Outcome(1, True, 3_000, 3, 0, 0, (Run(10, 0, 2_000), Run(20, 2_000, 3_000)))
    assert outcome.samples_played_at(at) == played


# -- the tape


def test_the_tape_forgets_what_lies_before_and_keeps_what_lies_after() -> None:
    tape = SpeechTape()
    for at in range(0, 100_000, 7_000):
        tape.append(speech(7_000, start=at))
    tape.forget(60_000)
    assert list(tape.read(60_000, 90_000)) == list(speech(30_000, start=60_000))
    assert len(tape._blocks) == -(-tape.end // 24_000) - 2
    for start, stop in ((59_999, 60_001), (5, 4), (tape.end, tape.end + 1)):
        with pytest.raises(ValueError, match="is not within"):
            tape.read(start, stop)


# -- any order of events


class AnyConversation(RuleBasedStateMachine):
    """Random events; a ledger beside the machine says what must come out."""

    def __init__(self) -> None:
        super().__init__()
        self.per_chunk = 1
        self.turns = machine(1)
        self.now = 0.0
        self.pushed: dict[int, int] = {}
        self.shown: dict[int, int] = {}
        self.ended: set[int] = set()
        self.over: dict[int, Outcome] = {}

    def live(self) -> list[int]:
        return [turn for turn in self.pushed if turn not in self.over]

    def collect(self) -> None:
        for outcome in self.turns.take_outcomes():
            self.note(outcome)

    def note(self, outcome: Outcome) -> None:
        assert outcome.turn_id not in self.over, "a second outcome"
        assert outcome.handed_out == self.shown[outcome.turn_id]
        assert outcome.handed_out == sum(run.stop - run.start for run in outcome.runs)
        assert outcome.interrupted or outcome.handed_out == self.pushed[outcome.turn_id]
        self.over[outcome.turn_id] = outcome

    @precondition(lambda self: not self.pushed)
    @rule()
    def use_chunks_of_four(self) -> None:
        self.turns, self.per_chunk = machine(4), 4

    @rule(num=st.sampled_from([0, 700, 3_000, 9_999]), ends=st.sampled_from([True, True, False]))
    def open(self, num: int, ends: bool) -> None:
        turn = self.turns.open()
        assert turn == len(self.pushed) + 1
        self.pushed[turn] = self.shown[turn] = 0
        self.add(turn, num)
        if ends:
            self.turns.end(turn)

    def add(self, turn: int, num: int) -> None:
        if self.turns.takes_speech(turn):
            self.turns.push(turn, turn * 1e5 + speech(num, start=self.pushed[turn]), self.now)
            self.pushed[turn] += num

    @precondition(lambda self: self.live())
    @rule(data=st.data(), num=st.sampled_from([1, 333, 1_000, 1_001, 4_000, 9_999]))
    def push(self, data: st.DataObject, num: int) -> None:
        self.add(data.draw(st.sampled_from(self.live())), num)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), how=st.sampled_from(["end", "flush"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        getattr(self.turns, how)(data.draw(st.sampled_from(self.live())))

    @rule(
        num=st.integers(1, 6),
        seconds=st.sampled_from([0.001, 0.05, 1.0]),
        is_due=st.booleans(),
        silent=st.booleans(),
    )
    def plan(self, num: int, seconds: float, is_due: bool, silent: bool) -> None:
        self.now += seconds
        if self.turns.wants_rewind(self.now):
            self.rewind(0)
        for _ in range(num):
            index = self.turns.next_chunk
            chunk = self.turns.plan(self.now, is_due=is_due, may_be_silent=silent)
            if chunk is not None:
                assert chunk.index == index
                assert len(chunk.samples) == self.per_chunk * 1_000 + LOOKAHEAD
                assert self.per_chunk * 1_000 <= chunk.num_known <= len(chunk.samples)
                assert not chunk.samples[chunk.num_known :].any()

    @rule(more=st.integers(0, 2))
    def rewind(self, more: int) -> None:
        on_screen = -(-self.turns.next_frame // self.per_chunk) - 1
        self.turns.drop_after(min(on_screen + more, self.turns.next_chunk - 1))

    @rule(num=st.integers(1, 6))
    def show(self, num: int) -> None:
        for _ in range(min(num, len(list(self.turns)))):
            frame = self.turns.next_frame
            plan = self.turns.show()
            assert self.turns.next_frame == frame + 1
            assert len(plan.samples) == SAMPLES_PER_FRAME
            assert not plan.samples[plan.num_speech :].any()
            if plan.num_speech:
                self.check(plan)

    def check(self, plan: FramePlan) -> None:
        turn = plan.turn_id
        assert turn is not None
        assert turn not in self.over, "a sample of a turn that is over"
        assert turn == self.live()[0] or all(
            self.shown[t] == self.pushed[t] for t in self.live() if t < turn
        ), "turns out of order"
        expected = turn * 1e5 + speech(plan.num_speech, start=self.shown[turn])
        assert list(plan.samples[: plan.num_speech]) == list(expected.astype(np.float32))
        self.shown[turn] += plan.num_speech

    @rule(data=st.data(), everything=st.booleans())
    def cut(self, data: st.DataObject, everything: bool) -> None:
        turns = self.live()
        if turns and not everything:
            turns = [data.draw(st.sampled_from(turns))]
        self.turns.cut(turns)
        self.collect()
        assert not set(turns) & set(self.live())

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        if paused:
            self.turns.pause()
        else:
            self.turns.resume(self.now)

    @rule(behind=st.sampled_from([0.0, 0.5, 1.0, 2.5]))
    def settle(self, behind: float) -> None:
        played = self.turns.next_frame - behind
        self.turns.settle(played)
        for outcome in self.turns.take_outcomes():
            self.note(outcome)
            assert not outcome.runs or outcome.runs[-1].ends_at <= played, "not played yet"

    @invariant()
    def silence_while_paused(self) -> None:
        if self.turns.state is State.PAUSED:
            assert not any(plan.num_speech for plan in self.turns)

    def teardown(self) -> None:
        self.turns.resume(self.now)
        for turn in self.live():
            self.turns.end(turn)
        for _ in range(100_000):
            if not self.turns.turn_ids:
                break
            self.plan(2, 1.0, True, False)
            self.show(4)
            self.settle(0)
        self.collect()
        assert set(self.over) == set(self.pushed), "a turn without an outcome"
        self.turns.close()


TestAnyConversation = AnyConversation.TestCase
TestAnyConversation.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
