"""What several sessions of one character used, as one `Usage`. Never guesses a price."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from talking_avatar.cost import DeviceUsage, Usage


def sum_of(usages: Iterable[Usage]) -> Usage:
    """Add up, kind by kind. A price is known only where all parts of it are."""
    kinds: dict[str, DeviceUsage] = {}
    for usage in usages:
        for device in usage.devices:
            before = kinds.get(device.kind)
            kinds[device.kind] = device if before is None else _add(before, device)
    return Usage(tuple(kinds.values()))


def price_of(usage: Usage) -> Decimal | None:
    """Give the price of all GPUs; None where one of their rates is unknown, or there is no GPU."""
    prices = [device.price for device in usage.devices if device.kind != "cpu"]
    known = [price for price in prices if price is not None]
    return sum(known, Decimal(0)) if known and len(known) == len(prices) else None


def _add(one: DeviceUsage, other: DeviceUsage) -> DeviceUsage:
    has_price = one.price is not None and other.price is not None
    return DeviceUsage(
        kind=one.kind,
        num_devices=max(one.num_devices, other.num_devices),
        held_s=one.held_s + other.held_s,
        active_s=one.active_s + other.active_s,
        gpu_hours=one.gpu_hours + other.gpu_hours,
        price=one.price + other.price if has_price else None,
    )
