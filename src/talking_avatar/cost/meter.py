"""Counts for one session.

Takes the engine's devices, then times of the event loop's monotonic clock and finished chunks.
Gives tallies and usage at any time, from any thread. Never reads a clock: so no step of the wall
clock, and no midnight, can add or take away anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal

from talking_avatar.cost.energy import NvmlEnergy
from talking_avatar.cost.holding import Holdings, Share
from talking_avatar.cost.rates import RateCard
from talking_avatar.cost.usage import DeviceTally, SessionTally, Usage, to_ns, usage_of
from talking_avatar.engine.base import FPS, Device, DeviceKind, FrameBlock

STEP_BOUNDS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 1 / 6, 0.18, 0.25, 0.5)
"""Upper bounds of the step histogram: close together below 1/6 s, the time that a chunk of four
frames is shown, which is its own bound."""

PROCESS_HOLDINGS = Holdings(NvmlEnergy())
"""Of this process: its GPUs are things that all its sessions share."""


class StepTimes:
    """A histogram of the time that chunks took to generate."""

    def __init__(self) -> None:
        self.counts = [0] * (len(STEP_BOUNDS_S) + 1)
        self.sum_ns = 0

    def add(self, seconds: float) -> None:
        """Count one chunk. A bound is part of the bin below it."""
        self.counts[bisect_left(STEP_BOUNDS_S, seconds)] += 1
        self.sum_ns += to_ns(seconds)


class Meter:
    """Counts for one session.

    Args:
        devices: What its engine holds.
        rates: What they cost; None: unknown.
        began_on: The day (UTC) whose rates count; None: today.
        holdings: Who else holds them.

    Attributes:
        steps: Times of all chunks that were made, shown or not.
        num_frames: Frames of those chunks.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        *,
        rates: RateCard | None = None,
        began_on: date | None = None,
        holdings: Holdings = PROCESS_HOLDINGS,
    ) -> None:
        self._devices = tuple({device.name: device for device in devices}.values())
        self._rates = rates
        self._day = began_on or datetime.now(UTC).date()
        self._holdings = holdings
        self._shares: list[tuple[Hashable, Share]] = []
        self._active_ns = [0] * len(self._devices)
        self._decode_ns = [0] * len(self._devices)
        self._decoders = self._places_of_decoders()
        self._started: int | None = None
        self._ready: int | None = None
        self._stopped: int | None = None
        self._warm_held_ns = 0
        self._num_samples = 0
        self._generate_ns = self._all_decode_ns = 0
        self.steps = StepTimes()
        self.num_frames = 0

    def _places_of_decoders(self) -> tuple[int, ...]:
        """Which devices decode: those that do nothing else, or else the first."""
        apart = tuple(i for i, device in enumerate(self._devices) if device.role == "decode")
        return apart or ((0,) if self._devices else ())

    @property
    def currency(self) -> str:
        return "USD" if self._rates is None else self._rates.currency

    @property
    def engine_fps(self) -> float | None:
        """Frames a second that the engine could make at most; None before its first chunk."""
        busiest_ns = max(self._generate_ns, self._all_decode_ns)
        return self.num_frames * 1e9 / busiest_ns if busiest_ns else None

    @property
    def is_at_or_below_real_time(self) -> bool:
        """Whether the engine has no headroom above the rate at which frames are shown."""
        fps = self.engine_fps
        return fps is not None and fps <= FPS

    def rate(self, kind: DeviceKind) -> Decimal | None:
        """Give the hourly rate that counts for this session; None where it is not known."""
        return None if self._rates is None else self._rates.per_hour(kind, self._day)

    def start(self, now: float, *, since: float | None = None) -> None:
        """The devices are held from now on, or have been since an earlier time."""
        self._started = to_ns(now if since is None else since)
        since_ns = None if since is None else self._started
        for device in self._devices:
            # A CPU is not held by anybody: each session has its own view of it.
            key: Hashable = device.name if device.is_gpu else object()
            share = self._holdings.hold(key, to_ns(now), since_ns=since_ns)
            self._shares.append((key, share))

    def ready(self, now: float) -> None:
        """The first frame is there: warming up is over. Only the first call counts."""
        if self._ready is None and self._stopped is None:
            self._warm_held_ns = self._gpu_held_ns(to_ns(now))
            self._ready = to_ns(now)

    def stop(self, now: float) -> None:
        """They are held no more. Only the first call counts."""
        if self._stopped is not None or self._started is None:
            return
        self._stopped = max(self._started, to_ns(now))
        for key, share in self._shares:
            self._holdings.release(key, share, self._stopped)

    def note(self, block: FrameBlock) -> None:
        """Count the work of a finished chunk, shown or not."""
        generate_ns, decode_ns = to_ns(block.generate_s), to_ns(block.decode_s)
        cpu_ns = generate_ns if block.cpu_s is None else to_ns(block.cpu_s)
        for place, device in enumerate(self._devices):
            if device.role != "decode":
                self._active_ns[place] += generate_ns if device.is_gpu else cpu_ns
        for place in self._decoders:
            self._active_ns[place] += decode_ns
            self._decode_ns[place] += decode_ns
        self._generate_ns += generate_ns
        self._all_decode_ns += decode_ns
        self.num_frames += len(block.images)
        self.steps.add(block.generate_s)

    def note_speech(self, num_samples: int) -> None:
        """Count speech that was handed out."""
        self._num_samples += num_samples

    def tally(self, now: float) -> SessionTally:
        """Give the exact sums up to ``now``, or up to `stop`."""
        if self._started is None:
            return SessionTally()
        end = max(self._started, to_ns(now)) if self._stopped is None else self._stopped
        held_ns = self._gpu_held_ns(end)  # brings the shares up to date
        is_warm = self._ready is not None
        return SessionTally(
            devices=tuple(self._tally_of(place) for place in range(len(self._devices))),
            wall_ns=end - self._started,
            warm_up_ns=(self._ready if self._ready is not None else end) - self._started,
            warm_held_ns=self._warm_held_ns if is_warm else held_ns,
            num_samples=self._num_samples,
        )

    def usage(self, now: float) -> Usage:
        """Give what was used up to ``now``, or up to `stop`."""
        return self.usage_of(self.tally(now))

    def usage_of(self, tally: SessionTally) -> Usage:
        """Say a tally of this session in hours and money."""
        return usage_of(tally, self.rate, self.currency)

    def _gpu_held_ns(self, now_ns: int) -> int:
        if self._stopped is None:
            for key, _ in self._shares:
                self._holdings.settle(key, now_ns)
        pairs = zip(self._devices, self._shares, strict=False)
        return sum(share.held_ns for device, (_, share) in pairs if device.is_gpu)

    def _tally_of(self, place: int) -> DeviceTally:
        _, share = self._shares[place]
        return DeviceTally(
            device=self._devices[place],
            held_ns=share.held_ns,
            active_ns=self._active_ns[place],
            decode_ns=self._decode_ns[place],
            energy_mj=share.energy_mj,
        )
