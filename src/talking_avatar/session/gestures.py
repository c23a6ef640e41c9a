"""Gestures: head angles over time, added to what the engine and the user's controls do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sin
from typing import Literal, TypeAlias

GestureName: TypeAlias = Literal["nod", "shake", "tilt"]
HeadAngles: TypeAlias = "tuple[float, float, float]"
"""Yaw, pitch, roll in degrees."""


def _swing(progress: float, num_swings: float) -> float:
    """Swing ``num_swings`` times and come to rest: 0 at both ends with no jump in speed."""
    return sin(2 * pi * num_swings * progress) * sin(pi * progress)


_GESTURES: dict[GestureName, tuple[float, Callable[[float], HeadAngles]]] = {
    "nod": (0.8, lambda p: (0.0, 7.0 * _swing(p, 1.5), 0.0)),
    "shake": (1.0, lambda p: (8.0 * _swing(p, 2.0), 0.0, 0.0)),
    "tilt": (1.6, lambda p: (0.0, 0.0, 6.0 * sin(pi * p) ** 2)),
}


@dataclass(frozen=True, slots=True)
class Gesture:
    """One gesture on the timeline.

    Attributes:
        name: Which.
        first_frame: Frame at which it begins.
    """

    name: GestureName
    first_frame: int

    def __post_init__(self) -> None:
        if self.name not in _GESTURES:
            raise ValueError(f"gesture {self.name!r} must be one of {', '.join(_GESTURES)}")

    def head_at(self, frame: float, fps: int) -> HeadAngles | None:
        """Give its head angles at a frame; None once it is over."""
        duration_s, angles = _GESTURES[self.name]
        progress = (frame - self.first_frame) / fps / duration_s
        if progress >= 1:
            return None
        return angles(max(0.0, progress))
