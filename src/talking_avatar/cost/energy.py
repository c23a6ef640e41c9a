"""What a GPU has consumed, where NVML can tell. Takes a device's name; None wherever it can't.

Needs the extra ``energy`` (nvidia-ml-py) and a GPU since Volta. Never starts a driver that no
engine has started: it asks only about devices that torch has already opened.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any


class NvmlEnergy:
    """Reads energy counters; finds each GPU once."""

    def __init__(self) -> None:
        self._handles: dict[Hashable, Any] = {}

    def __call__(self, device: Hashable) -> int | None:
        """Give the millijoules a GPU has consumed since its driver was loaded."""
        torch = sys.modules.get("torch")
        if not isinstance(device, str) or not device.startswith("cuda"):
            return None
        if torch is None or not torch.cuda.is_initialized():
            return None
        if device not in self._handles:
            self._handles[device] = _handle(device, torch)
        handle = self._handles[device]
        if handle is None:
            return None
        import pynvml

        try:
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except pynvml.NVMLError:
            self._handles[device] = None
            return None


def _handle(device: str, torch: Any) -> Any:
    """Find a GPU by its UUID: NVML's numbers are not those that a process sees."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except (pynvml.NVMLError, AttributeError, RuntimeError, AssertionError, ValueError):
        return None
