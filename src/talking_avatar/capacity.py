"""Whether this process has the cores for one more live session.

Takes the coming and going of live sessions that render on the CPU.
Gives a lease, or `AtCapacity`: a session too many is refused, so that none of them stutters.
Never limits unpaced sessions (they only take longer), nor the first one.

The rule: what the process uses now, plus what one more session is expected to use, must not
exceed 95 % of its cores. What it uses now is its CPU time since the last session came or went,
encoding and everything else included; one more is expected to use as much as each of those that
run, and at least what its engine says it needs. Nor is one admitted while those that run stall:
that is how load from outside this process shows.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from talking_avatar.errors import AtCapacity

LIMIT = 0.95
"""Share of the cores that live sessions may fill: three at 60 % of a core each fit two cores."""
MEASURE_S = 2.0
"""Shorter measurements than this are not believed: they are mostly the start of a session."""

NUM_STALLS, STALLS_S = 3, 10.0
"""So many stalls in so many seconds are no accident any more."""


class Capacity:
    """Counts the live sessions of one process; safe to share between threads.

    Args:
        num_cores: That the process may use.
        cpu_time: Gives the CPU seconds that the process has used.
    """

    def __init__(
        self, num_cores: float, *, cpu_time: Callable[[], float] = time.process_time
    ) -> None:
        self._num_cores = num_cores
        self._cpu_time = cpu_time
        self._lock = Lock()
        self._num_sessions = 0
        self._since = 0.0
        self._cpu_since = 0.0
        self._cores_each = 0.0
        self._stalls: deque[float] = deque(maxlen=NUM_STALLS)

    @property
    def num_sessions(self) -> int:
        """Live sessions that hold a lease."""
        return self._num_sessions

    def admit(self, expected_cores: float, now: float) -> None:
        """Take a lease for one more session; give it back with `release`.

        Args:
            expected_cores: What its engine says it needs.
            now: The loop's time.

        Raises:
            AtCapacity: The cores do not hold it.
        """
        with self._lock:
            self._measure(now)
            self._refuse_while_stalling(now)
            each = max(expected_cores, self._cores_each)
            needed = each * (self._num_sessions + 1)
            if self._num_sessions and needed > LIMIT * self._num_cores:
                raise AtCapacity(
                    f"{self._num_sessions} live sessions use {each:.2f} cores each: one more "
                    f"would need {needed:.2f} of {self._num_cores:g} cores. Run it in another "
                    "process on another machine, choose a smaller picture, or render unpaced",
                    needed_cores=needed,
                    num_cores=self._num_cores,
                )
            self._change(+1, now)

    def release(self, now: float) -> None:
        """Give a lease back."""
        with self._lock:
            self._measure(now)
            self._change(-1, now)

    def note_stall(self, now: float) -> None:
        """A session that holds a lease has made its viewer wait."""
        with self._lock:
            self._stalls.append(now)

    def _refuse_while_stalling(self, now: float) -> None:
        if not self._num_sessions or len(self._stalls) < NUM_STALLS:
            return
        if not 0 <= now - self._stalls[0] <= STALLS_S:
            return
        raise AtCapacity(
            f"the {self._num_sessions} live sessions that run have stalled {NUM_STALLS} times in "
            f"{STALLS_S:g} s: this machine is too busy for one more. Try again, or elsewhere",
            needed_cores=self._cores_each * (self._num_sessions + 1),
            num_cores=self._num_cores,
        )

    def _measure(self, now: float) -> None:
        elapsed_s = now - self._since
        if self._num_sessions and elapsed_s >= MEASURE_S:
            used = (self._cpu_time() - self._cpu_since) / elapsed_s
            self._cores_each = used / self._num_sessions

    def _change(self, by: int, now: float) -> None:
        self._num_sessions += by
        self._since, self._cpu_since = now, self._cpu_time()
        if not self._num_sessions:
            self._cores_each = 0.0
            self._stalls.clear()


def available_cores() -> float:
    """Give the cores this process may use: its affinity, or its container's quota if less."""
    if hasattr(os, "sched_getaffinity"):
        cores = float(len(os.sched_getaffinity(0)))
    else:
        cores = float(os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


PROCESS_CAPACITY = Capacity(available_cores())
"""Of this process: its cores are one thing that all its sessions share."""
