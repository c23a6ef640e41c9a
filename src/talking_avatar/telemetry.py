"""What monitoring sees of all sessions of this process: names, and two ways to export them.

Takes `Watch`es of sessions. Gives `Series` when it is asked, from what meters and statistics count
anyway: a session does nothing for it. Exporters for Prometheus and OpenTelemetry give the same
series by the same names; both are optional extras.
Never: configures logging, opens a port unasked, or names a person, a word or a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from talking_avatar.cost.meter import STEP_BOUNDS_S
from talking_avatar.cost.usage import NS_PER_HOUR, NS_PER_S
from talking_avatar.engine.base import FPS, SAMPLE_RATE
from talking_avatar.errors import MissingDependency
from talking_avatar.watch import Snapshot, Watch

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

PREFIX = "talking_avatar"
EVENTS = (
    "session_failed", "ledger_failed", "ledger_recovered", "ledger_lost",
)  # fmt: skip
"""Names of the log events about sessions and their costs; each carries its numbers as fields."""

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[tuple[str, str], ...]
CAUSES = ("generate", "decode", "hand_over", "consumer", "blocked_loop")


@dataclass(frozen=True, slots=True)
class Series:
    """One metric.

    Attributes:
        name: With prefix and unit; a counter's ends in ``_total``.
        kind: What it is.
        help: One line.
        labels: Names.
        per: Counted in whole numbers of one such part of the unit: sums of floats would depend on
            their order, and a counter that falls in its last digit is taken for a restart.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("engine",)
    per: int = 1


def _series(name: str, kind: Kind, help_: str, *labels: str, per: int = 1) -> Series:
    return Series(f"{PREFIX}_{name}", kind, help_, ("engine", *labels), per)


SESSIONS = _series("sessions", "gauge", "Sessions that run.")
SLOW = _series(
    "sessions_at_or_below_24_fps", "gauge", "Sessions whose engine makes no more than 24 fps."
)
STARTED = _series("sessions_started_total", "counter", "Sessions that were started.")
FRAMES = _series("frames_total", "counter", "Frames that left.")
SPEAKING = _series(
    "speaking_seconds_total", "counter", "Speech that was handed out.", per=SAMPLE_RATE
)
MISSED = _series("missed_chunks_total", "counter", "Chunks not made when due.", "cause")
LATE = _series("late_frames_total", "counter", "Frames handed over late.", "cause")
STALLS = _series("stalls_total", "counter", "Times that picture and sound waited.")
STALLED = _series("stalled_seconds_total", "counter", "How long they waited.", per=FPS)
STEPS = _series("step_seconds", "histogram", "Time to generate a chunk.", per=NS_PER_S)
HELD = _series(
    "held_seconds_total", "counter", "Device-seconds held.", "kind", "role", per=NS_PER_S
)
ACTIVE = _series(
    "active_seconds_total", "counter", "Device-seconds at work.", "kind", "role", per=NS_PER_S
)
GPU_HOURS = _series("gpu_hours_total", "counter", "GPU-hours held.", "kind", per=NS_PER_HOUR)
PRICE = _series(
    "price_total", "counter", "Price of sessions whose rates are known.", "currency", per=10**9
)
SERIES = (
    SESSIONS, SLOW, STARTED, FRAMES, SPEAKING, MISSED, LATE, STALLS, STALLED, STEPS, HELD, ACTIVE,
    GPU_HOURS, PRICE,
)  # fmt: skip
"""All of them."""


@dataclass(slots=True)
class Totals:
    """Values of every series, by the values of its labels.

    Attributes:
        values: Of counters and gauges, in parts of their unit: see `Series.per`.
        step_counts: Of the histogram: a count for each of `STEP_BOUNDS_S`, and one above them.
        step_sums: Its sums, in nanoseconds.
    """

    values: dict[Series, dict[Labels, int]] = field(default_factory=dict)
    step_counts: dict[Labels, list[int]] = field(default_factory=dict)
    step_sums: dict[Labels, int] = field(default_factory=dict)

    def add(self, series: Series, value: int, *labels: str) -> None:
        """Add to one value."""
        key = tuple(zip(series.labels, labels, strict=True))
        values = self.values.setdefault(series, {})
        values[key] = values.get(key, 0) + value

    def add_session(self, engine: str, now: Snapshot, *, is_running: bool) -> None:
        """Add all of a session."""
        counts, tally = now.counts, now.tally
        self.add(STARTED, 1, engine)
        self.add(SESSIONS, is_running, engine)
        self.add(SLOW, is_running and now.is_at_or_below_real_time, engine)
        self.add(FRAMES, counts.num_frames, engine)
        self.add(SPEAKING, tally.num_samples, engine)
        self.add(STALLS, counts.num_stalls, engine)
        self.add(STALLED, round(counts.stalled_s * FPS), engine)
        for cause in CAUSES:
            self.add(MISSED, getattr(counts.missed_chunks, cause), engine, cause)
            self.add(LATE, getattr(counts.late_frames, cause), engine, cause)
        for held in tally.devices:
            device = held.device
            self.add(HELD, held.held_ns, engine, device.kind, device.role)
            self.add(ACTIVE, held.active_ns, engine, device.kind, device.role)
            if device.is_gpu:
                self.add(GPU_HOURS, held.held_ns, engine, device.kind)
        price = now.usage.price
        if price is not None:
            self.add(PRICE, int(price * PRICE.per), engine, now.usage.currency)
        self._add_steps((("engine", engine),), now)

    def _add_steps(self, key: Labels, now: Snapshot) -> None:
        before = self.step_counts.get(key, [0] * len(now.step_counts))
        self.step_counts[key] = [a + b for a, b in zip(before, now.step_counts, strict=True)]
        self.step_sums[key] = self.step_sums.get(key, 0) + now.step_sum_ns

    def copy(self) -> Totals:
        """Give one that may be added to."""
        return Totals(
            {series: dict(values) for series, values in self.values.items()},
            {key: list(counts) for key, counts in self.step_counts.items()},
            dict(self.step_sums),
        )


class Sessions:
    """All sessions of a process: those that run, and the sums of those that have ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._watches: list[Watch] = []
        self._ended = Totals()

    def add(self, watch: Watch) -> None:
        """A session runs."""
        with self._lock:
            self._watches.append(watch)

    def remove(self, watch: Watch) -> None:
        """A session has ended: its counts stay, so that no counter ever falls."""
        with self._lock:
            self._watches.remove(watch)
            self._ended.add_session(watch.engine, watch.snapshot(), is_running=False)

    def totals(self) -> Totals:
        """Look at all of them now."""
        with self._lock:
            totals = self._ended.copy()
            for watch in self._watches:
                totals.add_session(watch.engine, watch.snapshot(), is_running=True)
        return totals


PROCESS_SESSIONS = Sessions()
"""Of this process: every `AvatarSession` is in it while it runs."""


# ---- Prometheus


class PrometheusCollector:
    """Reads all series when Prometheus scrapes.

    Args:
        sessions: Of what process.
    """

    def __init__(self, sessions: Sessions = PROCESS_SESSIONS) -> None:
        self._sessions = sessions

    def describe(self) -> Iterable[Metric]:
        """Tell the registry the names, before there is a session."""
        return self._metrics(Totals())

    def collect(self) -> Iterator[Metric]:
        """Give every series as it is now."""
        yield from self._metrics(self._sessions.totals())

    def _metrics(self, totals: Totals) -> Iterator[Metric]:
        from prometheus_client import core

        for series in SERIES:
            if series.kind == "histogram":
                yield self._histogram(series, totals)
                continue
            family = (
                core.CounterMetricFamily if series.kind == "counter" else core.GaugeMetricFamily
            )
            metric = family(series.name, series.help, labels=series.labels)
            for key, value in totals.values.get(series, {}).items():
                metric.add_metric([text for _, text in key], value / series.per)
            yield metric

    def _histogram(self, series: Series, totals: Totals) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        metric = HistogramMetricFamily(series.name, series.help, labels=series.labels)
        for key, counts in totals.step_counts.items():
            buckets = [(bound, float(count)) for bound, count in cumulative(counts)]
            metric.add_metric(
                [text for _, text in key], buckets, totals.step_sums[key] / series.per
            )
        return metric


def cumulative(counts: list[int]) -> Iterator[tuple[str, int]]:
    """Give a histogram's bounds as monitoring writes them, each with the count up to it."""
    total = 0
    for bound, count in zip((*STEP_BOUNDS_S, None), counts, strict=True):
        total += count
        yield "+Inf" if bound is None else f"{bound:.6g}", total


def register_prometheus(registry: CollectorRegistry | None = None) -> PrometheusCollector:
    """Put the series into a registry that the application serves; None: the default one.

    Raises:
        MissingDependency: prometheus-client is not installed.
    """
    client = _prometheus()
    collector = PrometheusCollector()
    (registry or client.REGISTRY).register(collector)
    return collector


def serve_prometheus(port: int, *, address: str = "127.0.0.1") -> Any:
    """Serve ``/metrics`` in a thread of its own.

    Args:
        port: To listen on; 0: any free one.
        address: Loopback, unless another one is wanted.

    Returns:
        The server and its thread: ``server.shutdown()`` and ``server.server_close()`` end it.

    Raises:
        MissingDependency: prometheus-client is not installed.
    """
    client = _prometheus()
    registry = client.CollectorRegistry()
    registry.register(PrometheusCollector())
    return client.start_http_server(port, addr=address, registry=registry)


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingDependency(
            'metrics need prometheus-client: pip install "talking-avatar[metrics]"'
        ) from error
    return prometheus_client


# ---- OpenTelemetry


def export_opentelemetry(provider: MeterProvider, *, sessions: Sessions = PROCESS_SESSIONS) -> None:
    """Make the series observable by an OpenTelemetry provider, by the names Prometheus sees.

    The step histogram comes as three counters, ``_bucket`` with ``le``, ``_sum`` and ``_count``:
    OpenTelemetry has no histogram that is read instead of written.

    Raises:
        MissingDependency: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry.metrics import CallbackOptions, Observation
    except ImportError as error:
        raise MissingDependency(
            'export needs opentelemetry-api: pip install "talking-avatar[otel]"'
        ) from error
    meter = provider.get_meter(PREFIX)

    def observe(name: str, kind: Kind, help_: str) -> None:
        def read(options: CallbackOptions) -> Iterator[Observation]:
            for labels, value in flat(sessions.totals()).get(name, ()):
                yield Observation(value, dict(labels))

        create = (
            meter.create_observable_gauge if kind == "gauge" else meter.create_observable_counter
        )
        create(name, callbacks=[read], description=help_)

    for series in SERIES:
        for name in sample_names(series):
            observe(name, series.kind, series.help)


def sample_names(series: Series) -> tuple[str, ...]:
    """Name the samples of a series, as a query does."""
    if series.kind == "histogram":
        return tuple(f"{series.name}_{part}" for part in ("bucket", "sum", "count"))
    return (series.name,)


def flat(totals: Totals) -> MappingProxyType[str, list[tuple[Labels, float]]]:
    """Give every sample by its name."""
    samples: dict[str, list[tuple[Labels, float]]] = {
        series.name: [(key, value / series.per) for key, value in values.items()]
        for series, values in totals.values.items()
    }
    buckets, sums, nums = sample_names(STEPS)
    for key, counts in totals.step_counts.items():
        for bound, count in cumulative(counts):
            samples.setdefault(buckets, []).append(((*key, ("le", bound)), count))
        samples.setdefault(sums, []).append((key, totals.step_sums[key] / STEPS.per))
        samples.setdefault(nums, []).append((key, sum(counts)))
    return MappingProxyType(samples)
