"""What the plugin adds to LiveKit's metrics."""

from __future__ import annotations

from decimal import Decimal

from livekit.agents.metrics.base import AvatarMetrics


class TurnMetrics(AvatarMetrics):
    """What one turn of the avatar took and what the session has cost so far.

    Comes as ``metrics_collected``, on the avatar and on the `AgentSession`, beside LiveKit's own
    `AvatarMetrics`.

    Attributes:
        turn_id: 1, 2, 3...
        played_s: Seconds of the turn that were heard.
        interrupted: Whether it was cut.
        conditioning_s: First speech pushed to the first window given to the engine.
        generate_s: To the chunk being generated.
        decode_s: To its frames being in host memory; 0 where the engine has no decoder apart.
        hand_out_s: To the first frame leaving at its due time.
        transport_s: To its sound leaving the queue of the track; None where nothing was heard.
        num_stalls, stalled_s: Times that picture and sound waited in this turn, and their sum.
        skew_s: Sound that left minus picture that left since the session began.
        missed_chunks, late_frames: Of the session, see `SessionStats`.
        held_s, active_s: Device-seconds that the session held and worked, of all devices.
        gpu_hours: GPU-hours held by the session so far.
        price: Of them; None while a rate is unknown.
    """

    turn_id: int
    played_s: float
    interrupted: bool
    conditioning_s: float | None = None
    generate_s: float | None = None
    decode_s: float | None = None
    hand_out_s: float | None = None
    transport_s: float | None = None
    num_stalls: int = 0
    stalled_s: float = 0.0
    skew_s: float = 0.0
    missed_chunks: int = 0
    late_frames: int = 0
    held_s: float = 0.0
    active_s: float = 0.0
    gpu_hours: float = 0.0
    price: Decimal | None = None
