"""Whose time a device's time is.

The rule: while n sessions of this process hold a GPU, each of them is charged 1/n of the time that
passes, and of the energy. So the sum over sessions is what the GPU was held for, to the nanosecond:
what does not divide by n goes round in turn. A GPU that nobody holds is charged to nobody.

Takes times of one monotonic clock. A clock that goes back is a clock that stood still.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeAlias

EnergyReader: TypeAlias = Callable[[Hashable], int | None]
"""Gives the millijoules that a device has consumed since it was started; None: unknown."""


class Share:
    """What one session has of one device so far."""

    __slots__ = ("energy_mj", "held_ns")

    def __init__(self) -> None:
        self.held_ns = 0
        self.energy_mj: int | None = None


class _Held:
    """A device that is held by somebody."""

    def __init__(self, since_ns: int, energy_mj: int | None) -> None:
        self.shares: list[Share] = []
        self._last_ns = since_ns
        self._last_mj = energy_mj
        self._turn = 0

    def settle(self, now_ns: int, energy_mj: int | None) -> None:
        """Charge what has passed since the last time to those who hold it."""
        elapsed = max(0, now_ns - self._last_ns)
        self._last_ns += elapsed
        for share, part in zip(self.shares, self._split(elapsed), strict=True):
            share.held_ns += part
        if energy_mj is None or self._last_mj is None:
            self._last_mj = energy_mj
            return
        used = max(0, energy_mj - self._last_mj)
        self._last_mj = energy_mj
        for share, part in zip(self.shares, self._split(used), strict=True):
            share.energy_mj = (share.energy_mj or 0) + part

    def _split(self, amount: int) -> list[int]:
        num = len(self.shares)
        each, rest = divmod(amount, num)
        parts = [each + ((place - self._turn) % num < rest) for place in range(num)]
        self._turn = (self._turn + rest) % num
        return parts


class Holdings:
    """The devices of one process. Safe to use from several threads.

    Args:
        energy: Reads a device's counter.
    """

    def __init__(self, energy: EnergyReader = lambda device: None) -> None:
        self._energy = energy
        self._held: dict[Hashable, _Held] = {}
        self._lock = Lock()

    def hold(self, device: Hashable, now_ns: int, *, since_ns: int | None = None) -> Share:
        """Begin to hold a device.

        Args:
            device: Its name within the process.
            now_ns: The time.
            since_ns: When it was taken in fact, if only known now, as when an engine has loaded.
                Where others hold it already, the time up to now stays theirs.
        """
        share = Share()
        with self._lock:
            energy = self._energy(device)
            held = self._held.get(device)
            if held is None:
                begin = now_ns if since_ns is None else min(since_ns, now_ns)
                held = self._held[device] = _Held(begin, energy)
            else:
                held.settle(now_ns, energy)
            held.shares.append(share)
            if since_ns is not None:
                held.settle(now_ns, energy)
            return share

    def release(self, device: Hashable, share: Share, now_ns: int) -> None:
        """End to hold it."""
        with self._lock:
            held = self._held[device]
            held.settle(now_ns, self._energy(device))
            held.shares.remove(share)
            if not held.shares:
                del self._held[device]

    def settle(self, device: Hashable, now_ns: int) -> None:
        """Bring all shares of a device up to date."""
        with self._lock:
            held = self._held.get(device)
            if held is not None:
                held.settle(now_ns, self._energy(device))
