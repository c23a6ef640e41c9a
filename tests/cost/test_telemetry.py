"""Metrics by name and value, what the dashboard asks for, and `top`."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from tests.cost.conftest import fake_engine, session_on
from typer.testing import CliRunner

from talking_avatar import telemetry
from talking_avatar.cli import app
from talking_avatar.cli.top import make_table
from talking_avatar.cost import RateCard
from talking_avatar.errors import MissingDependency
from talking_avatar.ledger import read_sessions
from talking_avatar.telemetry import (
    PROCESS_SESSIONS,
    SERIES,
    PrometheusCollector,
    Sessions,
    export_opentelemetry,
    flat,
    sample_names,
    serve_prometheus,
)
from talking_avatar.testing import in_virtual_time

CARD = RateCard.of({"H200": "3.60", "L40S": "0.90"})
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    """Give a process that has had no session yet."""
    fresh = Sessions()
    monkeypatch.setattr("talking_avatar.session.owner.PROCESS_SESSIONS", fresh)
    return fresh


def scrape(sessions: Sessions) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(sessions))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_prometheus_sees_what_runs_and_keeps_what_ran(sessions: Sessions) -> None:
    seen: list[dict[str, float]] = []

    @in_virtual_time
    async def run() -> None:
        async with session_on(fake_engine(), rates=CARD):
            async with session_on(fake_engine(step_s=0.2, decode_s=0.0)) as slow:
                await slow.idle(60)
                seen.append(scrape(sessions))
            seen.append(scrape(sessions))
        seen.append(scrape(sessions))

    run()
    both, one, none = seen
    name = "talking_avatar_sessions"
    assert [s[f'{name}{{engine="fake"}}'] for s in seen] == [2, 1, 0]
    assert [s[f'{name}_at_or_below_24_fps{{engine="fake"}}'] for s in seen] == [1, 0, 0]
    assert none[f'{name}_started_total{{engine="fake"}}'] == 2
    for series, value in both.items():
        if "_total" in series or "_bucket" in series or "_count" in series:
            assert value <= one[series] <= none[series], series
    hours = 'talking_avatar_gpu_hours_total{engine="fake",kind="H200"}'
    held = 'talking_avatar_held_seconds_total{engine="fake",kind="H200",role="denoise"}'
    assert none[hours] == pytest.approx(none[held] / 3600)
    # Both sessions name the same GPUs, so these were held once, for longer than a minute.
    assert 2 * 60 < none[held] < 2 * 100
    price = none['talking_avatar_price_total{currency="USD",engine="fake"}']
    assert 0 < price < 100 / 3600 * (2 * 3.6 + 0.9)
    missed = 'talking_avatar_missed_chunks_total{cause="generate",engine="fake"}'
    assert none[missed] > 10
    assert none['talking_avatar_stalls_total{engine="fake"}'] > 3
    step = "talking_avatar_step_seconds"
    assert (
        none[f'{step}_count{{engine="fake"}}'] == none[f'{step}_bucket{{engine="fake",le="+Inf"}}']
    )
    assert none[f'{step}_bucket{{engine="fake",le="0.1"}}'] > 300
    slow_steps = (
        none[f'{step}_count{{engine="fake"}}'] - none[f'{step}_bucket{{engine="fake",le="0.18"}}']
    )
    assert slow_steps > 250


def test_opentelemetry_has_the_same_names_and_values(sessions: Sessions) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    export_opentelemetry(provider, sessions=sessions)

    @in_virtual_time
    async def run() -> None:
        async with session_on(fake_engine(), rates=CARD) as session:
            await session.idle(10)

    run()
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    values = {
        (metric.name, tuple(sorted(point.attributes.items()))): point.value
        for metric in metrics
        for point in metric.data.data_points
    }
    expected = {
        (name, tuple(sorted(labels))): value
        for name, samples in flat(sessions.totals()).items()
        for labels, value in samples
    }
    assert values == pytest.approx(expected)
    names = {name for series in SERIES for name in sample_names(series)}
    assert {name for name, _ in values} == names


def test_no_session_is_left_in_the_process_when_it_has_ended() -> None:
    @in_virtual_time
    async def run() -> None:
        async with session_on(fake_engine()):
            assert len(PROCESS_SESSIONS._watches) == 1

    run()
    assert PROCESS_SESSIONS._watches == []


def test_metrics_are_served() -> None:
    server, thread = serve_prometheus(0)
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as page:
            text = page.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    for series in SERIES:
        assert f"# TYPE {series.name.removesuffix('_total')}" in text


@pytest.mark.parametrize(
    ("module", "export", "extra"),
    [
        ("prometheus_client", lambda: telemetry.register_prometheus(), "metrics"),
        ("opentelemetry.metrics", lambda: export_opentelemetry(None), "otel"),  # type: ignore[arg-type]
    ],
)
def test_a_missing_extra_is_named(monkeypatch, module: str, export, extra: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingDependency, match=rf"talking-avatar\[{extra}\]"):
        export()


def test_every_metric_of_the_dashboard_exists_and_every_metric_is_in_it() -> None:
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [str(v.get("query")) for v in dashboard["templating"]["list"]]
    used = {name for expr in asked for name in re.findall(r"talking_avatar_\w+", expr)}
    known = {name for series in SERIES for name in sample_names(series)}
    assert used <= known, used - known
    assert used == known
    labels = {label for series in SERIES for label in series.labels} | {"le"}
    for expr in asked:
        for names in re.findall(r"by \(([^)]*)\)", expr):
            assert set(names.replace(" ", "").split(",")) <= labels, expr
        assert expr.count("(") == expr.count(")"), expr
    assert any('le="0.166667"' in expr for expr in asked)


def test_the_bound_that_the_dashboard_asks_for_is_one() -> None:
    bounds = [bound for bound, _ in telemetry.cumulative([0] * 15)]
    assert "0.166667" in bounds
    assert bounds[-1] == "+Inf"


def test_the_docs_name_every_metric() -> None:
    page = (DOCS / "cost.md").read_text()
    for series in SERIES:
        assert f"`{series.name}`" in page


def test_every_event_that_is_listed_is_logged_somewhere() -> None:
    source = Path(telemetry.__file__).parent
    code = "".join(p.read_text() for p in source.rglob("*.py") if p.name != "telemetry.py")
    for event in telemetry.EVENTS:
        assert f'"{event}"' in code


def test_top_shows_who_runs_and_what_it_costs(tmp_path: Path) -> None:
    path = tmp_path / "cost.db"

    @in_virtual_time
    async def run() -> None:
        tags = {"customer": "acme [1]"}
        async with session_on(fake_engine(), ledger=path, rates=CARD, tags=tags) as session:
            await session.idle(120)

    run()
    printed = CliRunner().invoke(app, ["top", "--ledger", str(path), "--once"]).output
    for words in ("0 sessions run, holding 0 GPUs", "customer=acme [1]", "closed", "2.0", "USD"):
        assert words in printed, words
    sessions = read_sessions(path)
    console = Console(width=130, record=True, file=(tmp_path / "out").open("w"))
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    console.print(make_table(sessions, None, num_ended=0, now=noon))
    console.file.close()
    text = console.export_text()
    assert "2026-12-01 12:00:00 UTC" in text
    narrow = Console(width=80, record=True, file=(tmp_path / "out").open("w"))
    narrow.print(make_table(sessions, None, num_ended=1, now=noon, width=80))
    narrow.file.close()
    printed = narrow.export_text()
    assert "\u2026" not in printed
    assert "customer=" in printed
    assert " USD" in printed
    assert "closed" not in text
    assert make_table(sessions * 3, None, num_ended=5).row_count == 3
    assert make_table(sessions * 3, None, num_ended=2).row_count == 2
    assert CliRunner().invoke(app, ["top", "--ledger", str(tmp_path / "no.db")]).exit_code == 2
