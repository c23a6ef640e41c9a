"""The GPU a measurement was made on: name, versions, clocks and watts while it ran."""

from __future__ import annotations

import datetime
import subprocess
import threading
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"


def describe() -> dict[str, Any]:
    """Return what identifies the machine and its libraries."""
    properties = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton
    except ImportError:
        versions["triton"] = None
    else:
        versions["triton"] = triton.__version__
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": properties.name,
        "num_sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "driver": _query("driver_version,power.limit,clocks.max.sm"),
        **versions,
    }


def _query(fields: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


@dataclass
class Sampler:
    """Reads clocks and watts every half second while its block runs."""

    samples: list[tuple[float, ...]] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def __enter__(self) -> Sampler:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            *numbers, reason = _query(FIELDS).split(", ")
            try:
                self.samples.append(tuple(float(number) for number in numbers))
            except ValueError:
                return
            self.reasons.add(reason)

    def summary(self) -> dict[str, float | str]:
        """Return medians; empty when the driver did not answer."""
        if not self.samples:
            return {}
        sm, memory, watts, celsius = (median(column) for column in zip(*self.samples, strict=True))
        return {
            "sm_mhz": sm,
            "memory_mhz": memory,
            "watts": watts,
            "celsius": celsius,
            "throttle_reasons": " ".join(sorted(self.reasons)),
            "num_samples": float(len(self.samples)),
        }
