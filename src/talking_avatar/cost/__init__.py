"""What a session costs: what its devices were held for and at work for, and the price of that.

    rates     what an hour of a device costs, and from when
    usage     the frozen values that a caller gets
    holding   whose time a device's time is, when several sessions share it
    energy    what a GPU has consumed, where NVML can tell
    meter     counts for one session

Takes the engine's devices, the session's begin and end, and each finished chunk. Gives a frozen
`Usage`. Never reads a clock, and never guesses a price: unknown is None.

A GPU-hour is one GPU held for one hour by this session, working or waiting. CPUs cost none; their
core-hours are counted instead.
"""

from __future__ import annotations

from talking_avatar.cost.meter import Meter, StepTimes
from talking_avatar.cost.rates import Rate, RateCard
from talking_avatar.cost.usage import DeviceTally, DeviceUsage, SessionTally, UnitCost, Usage

__all__ = [
    "DeviceTally",
    "DeviceUsage",
    "Meter",
    "Rate",
    "RateCard",
    "SessionTally",
    "StepTimes",
    "UnitCost",
    "Usage",
]
