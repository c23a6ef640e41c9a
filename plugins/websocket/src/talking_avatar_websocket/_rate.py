"""How many bits a second an encoder that serves several viewers should spend.

Takes, once a second, how many of them are behind. Gives the rate. Never reads a clock.

The median viewer decides: when half of them or more are behind, the rate falls; slower ones than
the median lose frames instead. It rises when nobody was behind for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

DOWN = 0.7
UP = 1.25
DOWN_EVERY_S = 2.0
"""A lower rate needs that long to show an effect, and each change costs a key frame."""
UP_AFTER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRange:
    """Within which the rate moves; kbit/s."""

    min_kbps: int = 300
    max_kbps: int = 1_800

    def __post_init__(self) -> None:
        if not 50 <= self.min_kbps <= self.max_kbps <= 50_000:
            raise ValueError(
                f"rates {self.min_kbps} to {self.max_kbps} kbit/s must lie in 50 to 50,000"
            )


class RateController:
    """One encoder's rate.

    Args:
        range: Within which it moves; it starts at the top.
        now: The time.
    """

    def __init__(self, range: RateRange, now: float) -> None:
        self._range = range
        self._changed_at = now
        self._clear_since = now
        self.kbps = range.max_kbps

    def update(self, *, num_viewers: int, num_behind: int, now: float) -> int:
        """Give the rate from now on, in kbit/s.

        Args:
            num_viewers: That the encoder serves.
            num_behind: Those of them that could not take all of the last second.
            now: The time; a second or so after the last call.
        """
        if num_behind:
            self._clear_since = now
        if num_viewers and 2 * num_behind >= num_viewers:
            if now - self._changed_at >= DOWN_EVERY_S:
                self._move(self.kbps * DOWN, now)
        elif now - max(self._clear_since, self._changed_at) >= UP_AFTER_S:
            self._move(self.kbps * UP, now)
        return self.kbps

    def _move(self, kbps: float, now: float) -> None:
        bounded = round(min(max(kbps, self._range.min_kbps), self._range.max_kbps))
        if bounded != self.kbps:
            self.kbps, self._changed_at = bounded, now
