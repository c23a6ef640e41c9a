"""The frozen values that a session gives to its user.

Shapes: H, W are the session's height and width. 24 frames a second, 24,000 samples a second,
so that one frame carries exactly 1,000 samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from talking_avatar.cost import Usage

ClockMode: TypeAlias = Literal["live", "unpaced"]
"""``"live"``: frames leave on the wall clock. ``"unpaced"``: as fast as engine and reader go."""
PixelFormat: TypeAlias = Literal["rgb24", "i420"]
PositionSource: TypeAlias = Literal["acknowledged", "estimated", "handed_out"]
"""How a played position is known, best first: the far end said so; computed from its clock and
buffer; only counted here as it was handed to the transport."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame of picture and the 1,000 samples of sound that leave with it.

    Attributes:
        index: 0, 1, 2... without gaps, from the start of the session.
        image: uint8; RGB (H, W, 3), or I420 (H * 3 / 2, W) on request.
        audio: int16 (1000,), 24 kHz mono.
        pts: Seconds on the media timeline: ``index / 24``.
        turn_id: The turn whose speech sounds in ``audio``, or that pauses or waits for more speech
            here; None between turns and after a turn was cut.
        speaking: Whether it is speech of a turn that is still wanted. False in idle, in gaps and
            in the picture that runs on, silent, after an interruption.
    """

    index: int
    image: npt.NDArray[np.uint8]
    audio: npt.NDArray[np.int16]
    pts: float
    turn_id: int | None
    speaking: bool


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a turn's speech was played.

    Attributes:
        seconds: From the turn's first sample; silence inserted by stalls is not counted.
        source: How this is known.
    """

    seconds: float
    source: PositionSource = "handed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLatency:
    """From the first speech pushed to the first picture shown, cut into its parts; seconds.

    Attributes:
        voice_agent_s: What the caller measured before pushing speech (its own VAD, STT, LLM and
            TTS time); None unless the caller said.
        conditioning_s: First speech pushed to the submission of the first window that holds it.
        generate_s: To the chunk being generated.
        decode_s: To its frames being in host memory; 0 where the engine has no decoder apart.
        hand_out_s: To the first frame being handed out, at its due time.
        transport_s: To the far end showing it; None where the transport does not say.
    """

    voice_agent_s: float | None
    conditioning_s: float
    generate_s: float
    decode_s: float
    hand_out_s: float
    transport_s: float | None = None

    @property
    def pipeline_s(self) -> float:
        """Speech pushed to frame handed out: what this package answers for."""
        return self.conditioning_s + self.generate_s + self.decode_s + self.hand_out_s

    @property
    def total_s(self) -> float:
        """All known parts."""
        return (self.voice_agent_s or 0.0) + self.pipeline_s + (self.transport_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What became of one turn. Each turn gives exactly one.

    Attributes:
        turn_id: 1, 2, 3... in the order of creation.
        played_s: Seconds of the turn's speech that were played, by ``source``.
        source: How ``played_s`` is known.
        interrupted: Cut by `interrupt()`, cancellation or the end of the session.
        first_frame_s: First speech pushed to first frame handed out; None if none was.
        num_frames: Frames of this turn handed out.
        stalls: Times that picture and sound had to wait during the turn.
        stalled_s: Their sum in seconds.
        latency: ``first_frame_s`` in parts; None if no frame was handed out.
        usage: What the session held and did for it: from its opening, or from the end of the turn
            before it, to its own end.
    """

    turn_id: int
    played_s: float
    source: PositionSource
    interrupted: bool
    first_frame_s: float | None
    num_frames: int
    stalls: int
    stalled_s: float
    latency: TurnLatency | None
    usage: Usage | None = None
