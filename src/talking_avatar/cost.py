"""What a session costs: seconds that devices were held and at work, and GPU-hours.

Takes the engine's devices, the session's begin and end, and each finished chunk.
Gives a frozen `Usage`. Never reads a clock and never guesses a price: unknown is None.

A GPU-hour is one GPU held for one hour by this session, working or waiting. CPUs cost none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from talking_avatar.engine.base import Device, DeviceKind, FrameBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What the devices of one kind did.

    Attributes:
        kind: As a rate card names it.
        num_devices: How many of that kind the session holds.
        held_s: Device-seconds held.
        active_s: Device-seconds at work.
        gpu_hours: ``held_s / 3600``; 0 for a CPU.
        price: None while no rate is known.
    """

    kind: DeviceKind
    num_devices: int
    held_s: float
    active_s: float
    gpu_hours: float
    price: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session, or a part of it, used: one entry per kind of device."""

    devices: tuple[DeviceUsage, ...] = ()

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all kinds."""
        return sum(device.gpu_hours for device in self.devices)


class Meter:
    """Counts for one session.

    Args:
        devices: What its engine holds.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = {device.name: device for device in devices}
        self._started: float | None = None
        self._stopped: float | None = None
        self._generate_s = 0.0
        self._decode_s = 0.0

    def start(self, now: float) -> None:
        """The devices are held from now on."""
        self._started = now

    def stop(self, now: float) -> None:
        """They are held no more. Only the first call counts."""
        if self._stopped is None:
            self._stopped = now

    def note(self, block: FrameBlock) -> None:
        """Count the work of a finished chunk, shown or not."""
        self._generate_s += block.generate_s
        self._decode_s += block.decode_s

    def usage(self, now: float) -> Usage:
        """Give the sums up to ``now``, or up to `stop`."""
        held_s = 0.0
        if self._started is not None:
            end = now if self._stopped is None else self._stopped
            held_s = max(0.0, end - self._started)
        kinds = dict.fromkeys(device.kind for device in self._devices.values())
        return Usage(tuple(self._of_kind(kind, held_s) for kind in kinds))

    def _of_kind(self, kind: DeviceKind, held_s: float) -> DeviceUsage:
        devices = [device for device in self._devices.values() if device.kind == kind]
        held = held_s * len(devices)
        active = sum(
            self._decode_s if device.role == "decode" else self._generate_s for device in devices
        )
        gpu_hours = held / 3600 if devices[0].is_gpu else 0.0
        return DeviceUsage(
            kind=kind, num_devices=len(devices), held_s=held, active_s=active, gpu_hours=gpu_hours
        )
