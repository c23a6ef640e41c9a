"""Chance without memory: every draw is a function of a seed, a name and a number.

So a character's whims need no generator to be saved and restored, and any frame can be asked
for its noise alone. Takes integers, gives floats; never keeps a state.
"""

from __future__ import annotations

import functools
from math import cos, exp, floor, log, pi, sqrt
from zlib import crc32

_MASK = (1 << 64) - 1


def uniform(seed: int, name: str, number: int) -> float:
    """Draw from [0, 1): the finalizer of SplitMix64 (Steele, Lea, Flood, 2014) as a hash."""
    x = (seed * 0x9E3779B97F4A7C15 + (crc32(name.encode()) << 32) + number + 1) & _MASK
    for _ in range(2):
        x = (x + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x / 2.0**64


# `drift` asks for the same knots frame after frame: about 100 a session, 30 new ones a second. So
# many serve ten sessions, and are full, 0.2 MB, within a session's first minute.
@functools.lru_cache(maxsize=1024)
def normal(seed: int, name: str, number: int) -> float:
    """Draw from the standard normal distribution, cut at 2.5."""
    radius = sqrt(-2.0 * log(1.0 - uniform(seed, name, 2 * number)))
    drawn = radius * cos(2.0 * pi * uniform(seed, name, 2 * number + 1))
    return min(2.5, max(-2.5, drawn))


def log_normal(seed: int, name: str, number: int, *, median: float, spread: float) -> float:
    """Draw a duration: half lie below ``median``; ``spread`` is the deviation of its logarithm."""
    return median * exp(spread * normal(seed, name, number))


def drift(seed: int, name: str, time_s: float, knot_s: float) -> float:
    """Read smooth noise: a cubic B-spline over random knots.

    Twice continuously differentiable and without a period, as a sine is not; hardly any energy
    above ``0.5 / knot_s`` Hz. Standard deviation about 0.7.
    """
    place = time_s / knot_s
    index = floor(place)
    t = place - index
    weights = (
        (1.0 - t) ** 3,
        3.0 * t**3 - 6.0 * t**2 + 4.0,
        -3.0 * t**3 + 3.0 * t**2 + 3.0 * t + 1.0,
        t**3,
    )
    return sum(w * normal(seed, name, index + k) for k, w in enumerate(weights)) / 6.0
