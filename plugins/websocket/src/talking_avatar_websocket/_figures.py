"""A session's statistics as viewers get them once a second.

Takes a session and the last turn's result. Gives `Stats`; what is of one viewer only is added
later.
"""

from __future__ import annotations

import time

from talking_avatar import AvatarSession, TurnLatency, TurnResult
from talking_avatar_websocket._messages import Latency, Stats


class Figures:
    """Of one session.

    Args:
        now: The time, in seconds; that of all later calls is of the same clock.
    """

    def __init__(self, now: float) -> None:
        self._at = now
        self._cpu_s = time.process_time()
        self._num_frames = 0

    def stats(
        self,
        session: AvatarSession,
        stream: int,
        last: TurnResult | None,
        now: float,
        *,
        transport_s: float | None,
    ) -> Stats:
        """Give the figures since the last call.

        Args:
            session: Whose they are.
            stream: Number of its stream.
            last: What became of its last turn; None before.
            now: The time.
            transport_s: From a frame's hand-out to its being shown; None while unknown.
        """
        stats, usage = session.stats(), session.usage()
        cpu_s = time.process_time()
        elapsed_s = max(now - self._at, 1e-3)
        fps = (stats.num_frames - self._num_frames) / elapsed_s
        cpu_cores = (cpu_s - self._cpu_s) / elapsed_s
        self._at, self._cpu_s, self._num_frames = now, cpu_s, stats.num_frames
        first_frame_s = None if last is None else last.first_frame_s
        latency = None if last is None else last.latency
        return Stats(
            stream=stream,
            fps=round(fps, 2),
            num_frames=stats.num_frames,
            skew_ms=round(stats.skew_s * 1e3, 3),
            stalls=stats.num_stalls,
            stalled_s=round(stats.stalled_s, 3),
            missed_chunks=stats.missed_chunks.total,
            late_frames=stats.late_frames.total,
            lateness_p50_ms=round(stats.lateness_p50_ms, 3),
            lateness_p99_ms=round(stats.lateness_p99_ms, 3),
            first_frame_ms=None if first_frame_s is None else round(first_frame_s * 1e3, 1),
            latency=None if latency is None else parts_of(latency, transport_s),
            cpu_cores=round(cpu_cores, 3),
            gpu_hours=usage.gpu_hours,
            price=None if usage.price is None else str(usage.price),
            currency=None if usage.price is None else usage.currency,
        )


def parts_of(latency: TurnLatency, transport_s: float | None) -> Latency:
    """Give a turn's latency as viewers get it.

    Args:
        latency: As the session measured it.
        transport_s: What it cannot know: from a frame's hand-out to its being shown.
    """
    parts = {name: getattr(latency, name) for name in Latency.model_fields}
    if latency.transport_s is None:
        parts["transport_s"] = transport_s
    return Latency.model_validate(parts)
