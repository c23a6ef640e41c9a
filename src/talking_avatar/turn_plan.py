"""The frozen values that pass between the turn machine and the session."""

from __future__ import annotations

from dataclasses import dataclass

from talking_avatar.engine.base import SAMPLES_PER_FRAME
from talking_avatar.tape import Samples


@dataclass(frozen=True, slots=True, eq=False)
class FramePlan:
    """What one frame says.

    Attributes:
        turn_id: The turn it belongs to; None between turns.
        samples: float32 (1000,): speech, then silence.
        start: Position in the turn of its first sample.
        num_speech: Samples of speech in it; 0 in idle, gaps and pauses.
    """

    turn_id: int | None
    samples: Samples
    start: int = 0
    num_speech: int = 0

    @property
    def stop(self) -> int:
        """Position in the turn after its last sample."""
        return self.start + self.num_speech


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """What one chunk says, and what is known to follow.

    Attributes:
        index: Of the chunk.
        samples: float32 (chunk_samples + lookahead_samples,).
        num_known: How many of ``samples`` are final.
        speaking: Whether any of its frames has speech.
        turn_ids: Turns whose speech it holds, in order.
    """

    index: int
    samples: Samples
    num_known: int
    speaking: bool
    turn_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive frames that said consecutive samples of a turn."""

    first_frame: int
    start: int
    stop: int

    @property
    def ends_at(self) -> float:
        """Where on the timeline it ends, in frames."""
        return self.first_frame + (self.stop - self.start) / SAMPLES_PER_FRAME


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one turn.

    Attributes:
        turn_id: Which.
        interrupted: It was cut.
        handed_out: Samples that were shown.
        num_frames: Frames that showed them.
        num_stalls: Times that the timeline waited while it spoke.
        stalled_frames: Their length.
        runs: Where on the timeline its speech was.
    """

    turn_id: int
    interrupted: bool
    handed_out: int
    num_frames: int
    num_stalls: int
    stalled_frames: int
    runs: tuple[Run, ...]

    @property
    def ends_at(self) -> float:
        """Where on the timeline its last sample ended, in frames; 0 where none was shown."""
        return self.runs[-1].ends_at if self.runs else 0.0

    def samples_played_at(self, frame_position: float) -> int:
        """Samples of the turn that lie before a position on the timeline, in frames."""
        played = 0
        for run in self.runs:
            heard = round((frame_position - run.first_frame) * SAMPLES_PER_FRAME)
            if heard > 0:
                played = min(run.start + heard, run.stop)
        return played
