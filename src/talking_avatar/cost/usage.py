"""What was used, as values: exact integers inside, hours and money outside.

Never averages, and never turns an unknown into 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal

from talking_avatar.engine.base import SAMPLE_RATE, Device, DeviceKind

NS_PER_S = 1_000_000_000
NS_PER_HOUR = 3600 * NS_PER_S
MJ_PER_WH = 3_600_000

PriceOf = Callable[[DeviceKind], Decimal | None]
"""Gives the hourly rate of a kind of device; None where it is not known."""


def to_ns(seconds: float) -> int:
    """Turn seconds, of a clock or of work, into whole nanoseconds."""
    return round(seconds * NS_PER_S)


@dataclass(frozen=True, slots=True)
class DeviceTally:
    """One device in one session, exact.

    Attributes:
        device: Which.
        held_ns: Nanoseconds held, or this session's share of them.
        active_ns: At work for this session, the decoder's work included.
        decode_ns: The decoder's part of ``active_ns``.
        energy_mj: Millijoules, or this session's share of them; None where nobody can tell.
    """

    device: Device
    held_ns: int = 0
    active_ns: int = 0
    decode_ns: int = 0
    energy_mj: int | None = None


@dataclass(frozen=True, slots=True)
class SessionTally:
    """All of one session, or of a part of it, exact.

    Attributes:
        devices: In the engine's order.
        wall_ns: Nanoseconds from the first device held to the last released.
        warm_up_ns: The part of ``wall_ns`` before the first frame was ready.
        warm_held_ns: GPU-nanoseconds held in that part; they are in ``devices`` too.
        num_samples: Samples of speech that were handed out.
    """

    devices: tuple[DeviceTally, ...] = ()
    wall_ns: int = 0
    warm_up_ns: int = 0
    warm_held_ns: int = 0
    num_samples: int = 0

    def since(self, earlier: SessionTally) -> SessionTally:
        """Give what came after an earlier tally of the same session."""
        before = earlier.devices or tuple(DeviceTally(d.device) for d in self.devices)
        return SessionTally(
            devices=tuple(_after(old, new) for old, new in zip(before, self.devices, strict=True)),
            wall_ns=self.wall_ns - earlier.wall_ns,
            warm_up_ns=self.warm_up_ns - earlier.warm_up_ns,
            warm_held_ns=self.warm_held_ns - earlier.warm_held_ns,
            num_samples=self.num_samples - earlier.num_samples,
        )


def _after(old: DeviceTally, new: DeviceTally) -> DeviceTally:
    energy = None if new.energy_mj is None else new.energy_mj - (old.energy_mj or 0)
    return DeviceTally(
        device=new.device,
        held_ns=new.held_ns - old.held_ns,
        active_ns=new.active_ns - old.active_ns,
        decode_ns=new.decode_ns - old.decode_ns,
        energy_mj=energy,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What the devices of one kind did.

    Attributes:
        kind: As a rate card names it.
        num_devices: How many of that kind the session holds.
        held_s: Device-seconds held.
        active_s: Device-seconds at work, the decoder's included.
        gpu_hours: ``held_s / 3600``; 0 for a CPU.
        price: None while no rate is known.
        decode_held_s: The part of ``held_s`` on devices that only decode.
        decode_active_s: The decoder's part of ``active_s``.
        core_hours: CPU time of the engine, in hours; 0 for a GPU.
        energy_wh: None where the device does not tell.
    """

    kind: DeviceKind
    num_devices: int
    held_s: float
    active_s: float
    gpu_hours: float
    price: Decimal | None = None
    decode_held_s: float = 0.0
    decode_active_s: float = 0.0
    core_hours: float = 0.0
    energy_wh: float | None = None


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What one minute came to.

    Attributes:
        gpu_hours: Held for it.
        price: None while a rate is unknown.
    """

    gpu_hours: float
    price: Decimal | None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session, or a part of it, used.

    Attributes:
        devices: One entry per kind of device.
        wall_s: From the first device held to now, or to the end.
        warm_up_s: The part of it before the first frame was ready.
        warm_up_gpu_hours: GPU-hours of that part; included in all the others.
        speaking_s: Speech that was handed out.
        currency: Of every price.
    """

    devices: tuple[DeviceUsage, ...] = ()
    wall_s: float = 0.0
    warm_up_s: float = 0.0
    warm_up_gpu_hours: float = 0.0
    speaking_s: float = 0.0
    currency: str = "USD"

    def __add__(self, other: Usage) -> Usage:
        """Add up, kind by kind: ``sum(usages, Usage())``. Unknown plus anything is unknown.

        Raises:
            ValueError: Their prices are in different currencies.
        """
        if self.devices and other.devices and self.currency != other.currency:
            raise ValueError(f"{self.currency} and {other.currency} do not add up")
        kinds: dict[DeviceKind, DeviceUsage] = {}
        for device in (*self.devices, *other.devices):
            before = kinds.get(device.kind)
            kinds[device.kind] = device if before is None else _sum_of(before, device)
        return Usage(
            devices=tuple(kinds.values()),
            wall_s=self.wall_s + other.wall_s,
            warm_up_s=self.warm_up_s + other.warm_up_s,
            warm_up_gpu_hours=self.warm_up_gpu_hours + other.warm_up_gpu_hours,
            speaking_s=self.speaking_s + other.speaking_s,
            currency=(self if self.devices else other).currency,
        )

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all kinds."""
        return sum(device.gpu_hours for device in self.devices)

    @property
    def core_hours(self) -> float:
        """Hours of CPU time that the engine used."""
        return sum(device.core_hours for device in self.devices)

    @property
    def price(self) -> Decimal | None:
        """Of all kinds; None while the rate of one is unknown, or nothing was held."""
        return total_price(device.price for device in self.devices)

    @property
    def energy_wh(self) -> float | None:
        """Of all kinds; None where one does not tell."""
        known = [d.energy_wh for d in self.devices if d.energy_wh is not None]
        return sum(known) if known and len(known) == len(self.devices) else None

    @property
    def per_wall_minute(self) -> UnitCost | None:
        """What a minute of the session came to; None before it began."""
        return self._per(self.wall_s)

    @property
    def per_speaking_minute(self) -> UnitCost | None:
        """What a minute of speech came to, all waiting included; None while nothing was said."""
        return self._per(self.speaking_s)

    def _per(self, seconds: float) -> UnitCost | None:
        if seconds <= 0:
            return None
        price = self.price
        each = None if price is None else price * 60 / Decimal(repr(seconds))
        return UnitCost(self.gpu_hours * 60 / seconds, each)


def _sum_of(one: DeviceUsage, other: DeviceUsage) -> DeviceUsage:
    """Add two of a kind. Of devices held one session after the other, the larger number counts."""
    has_energy = one.energy_wh is not None and other.energy_wh is not None
    return DeviceUsage(
        kind=one.kind,
        num_devices=max(one.num_devices, other.num_devices),
        held_s=one.held_s + other.held_s,
        active_s=one.active_s + other.active_s,
        gpu_hours=one.gpu_hours + other.gpu_hours,
        price=total_price((one.price, other.price)),
        decode_held_s=one.decode_held_s + other.decode_held_s,
        decode_active_s=one.decode_active_s + other.decode_active_s,
        core_hours=one.core_hours + other.core_hours,
        energy_wh=(one.energy_wh or 0) + (other.energy_wh or 0) if has_energy else None,
    )


def total_price(prices: Iterable[Decimal | None]) -> Decimal | None:
    """Add prices up; None if one is, or if there are none."""
    given = list(prices)
    known = [price for price in given if price is not None]
    return sum(known, Decimal(0)) if known and len(known) == len(given) else None


def usage_of(tally: SessionTally, price_of: PriceOf, currency: str = "USD") -> Usage:
    """Say a tally in hours and money."""
    kinds = dict.fromkeys(device.device.kind for device in tally.devices)
    return Usage(
        devices=tuple(_of_kind(kind, tally.devices, price_of(kind)) for kind in kinds),
        wall_s=tally.wall_ns / NS_PER_S,
        warm_up_s=tally.warm_up_ns / NS_PER_S,
        warm_up_gpu_hours=tally.warm_held_ns / NS_PER_HOUR,
        speaking_s=tally.num_samples / SAMPLE_RATE,
        currency=currency,
    )


def _of_kind(
    kind: DeviceKind, tallies: tuple[DeviceTally, ...], rate: Decimal | None
) -> DeviceUsage:
    ours = [tally for tally in tallies if tally.device.kind == kind]
    is_gpu = ours[0].device.is_gpu
    held, active = sum(t.held_ns for t in ours), sum(t.active_ns for t in ours)
    decoding = sum(t.held_ns for t in ours if t.device.role == "decode")
    energy = [t.energy_mj for t in ours if t.energy_mj is not None]
    billed = held if is_gpu else active
    return DeviceUsage(
        kind=kind,
        num_devices=len(ours),
        held_s=held / NS_PER_S,
        active_s=active / NS_PER_S,
        gpu_hours=held / NS_PER_HOUR if is_gpu else 0.0,
        price=None if rate is None else rate * billed / NS_PER_HOUR,
        decode_held_s=decoding / NS_PER_S,
        decode_active_s=sum(t.decode_ns for t in ours) / NS_PER_S,
        core_hours=0.0 if is_gpu else active / NS_PER_HOUR,
        energy_wh=sum(energy) / MJ_PER_WH if energy and len(energy) == len(ours) else None,
    )
