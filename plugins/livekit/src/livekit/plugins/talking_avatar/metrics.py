"""What the plugin adds to LiveKit's metrics."""

from __future__ import annotations

import time
from decimal import Decimal

from livekit.agents.metrics.base import AvatarMetrics, Metadata

from talking_avatar import TurnResult
from talking_avatar.cost import Usage
from talking_avatar.stats import SessionStats

PROVIDER = "talking-avatar"


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


def metrics_of(result: TurnResult, stats: SessionStats, usage: Usage) -> TurnMetrics:
    """Give the metrics of a turn that is over."""
    latency = result.latency
    return TurnMetrics(
        timestamp=time.time(),
        metadata=Metadata(model_provider=PROVIDER),
        turn_id=result.turn_id,
        played_s=result.played_s,
        interrupted=result.interrupted,
        playback_latency=latency.total_s if latency else 0.0,
        conditioning_s=latency and latency.conditioning_s,
        generate_s=latency and latency.generate_s,
        decode_s=latency and latency.decode_s,
        hand_out_s=latency and latency.hand_out_s,
        transport_s=latency and latency.transport_s,
        num_stalls=result.stalls,
        stalled_s=result.stalled_s,
        skew_s=stats.skew_s,
        missed_chunks=stats.missed_chunks.total,
        late_frames=stats.late_frames.total,
        held_s=sum(device.held_s for device in usage.devices),
        active_s=sum(device.active_s for device in usage.devices),
        gpu_hours=usage.gpu_hours,
        price=usage.price,
    )
