"""What several sessions of one character used, as one `Usage`. Never guesses a price."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from talking_avatar.cost import DeviceUsage, Usage


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Add up, kind by kind. A price or an energy is known only where all parts of it are."""
    if len(usages) == 1:
        return usages[0]
    kinds: dict[str, list[DeviceUsage]] = {}
    for usage in usages:
        for device in usage.devices:
            kinds.setdefault(device.kind, []).append(device)
    return Usage(
        devices=tuple(_sum_of_kind(devices) for devices in kinds.values()),
        wall_s=sum(usage.wall_s for usage in usages),
        warm_up_s=sum(usage.warm_up_s for usage in usages),
        warm_up_gpu_hours=sum(usage.warm_up_gpu_hours for usage in usages),
        speaking_s=sum(usage.speaking_s for usage in usages),
        currency=usages[-1].currency if usages else Usage().currency,
    )


def _sum_of_kind(devices: list[DeviceUsage]) -> DeviceUsage:
    prices = [device.price for device in devices if device.price is not None]
    energies = [device.energy_wh for device in devices if device.energy_wh is not None]
    return DeviceUsage(
        kind=devices[0].kind,
        num_devices=max(device.num_devices for device in devices),
        held_s=sum(device.held_s for device in devices),
        active_s=sum(device.active_s for device in devices),
        gpu_hours=sum(device.gpu_hours for device in devices),
        price=sum(prices, Decimal(0)) if len(prices) == len(devices) else None,
        decode_held_s=sum(device.decode_held_s for device in devices),
        decode_active_s=sum(device.decode_active_s for device in devices),
        core_hours=sum(device.core_hours for device in devices),
        energy_wh=sum(energies) if len(energies) == len(devices) else None,
    )
