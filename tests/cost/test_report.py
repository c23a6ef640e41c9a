"""Sums over the ledger, and the command that prints them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.cost.conftest import NOON_US, Clock
from typer.testing import CliRunner

from talking_avatar.cli import app
from talking_avatar.cost import RateCard
from talking_avatar.ledger import read_sessions, report
from talking_avatar.ledger.store import Store


def test_a_report_by_tag_day_and_session(ledger: Path) -> None:
    sessions = read_sessions(ledger)
    acme, zoo = report(sessions, by="tag", tag="customer")
    assert (acme.key, acme.num_sessions, acme.price) == ("acme", 2, Decimal("12.15"))
    assert acme.usage.gpu_hours == pytest.approx(4.5)
    assert (zoo.key, zoo.price) == ("zoo", None)
    days = report(sessions, by="day")
    assert [(line.key, line.num_sessions) for line in days] == [
        ("2026-05-31", 1),
        ("2026-06-01", 2),
    ]
    assert len(report(sessions)) == 3
    assert [line.key for line in report(sessions, by="tag")] == [
        "agent=a customer=acme", "agent=b customer=acme", "customer=zoo",
    ]  # fmt: skip


def test_a_later_card_prices_what_had_no_rate_and_nothing_else(ledger: Path) -> None:
    card = RateCard.of({"H200": "100", "L40S": "100"})
    lines = report(read_sessions(ledger), by="tag", tag="customer", rates=card)
    assert [line.price for line in lines] == [Decimal("12.15"), Decimal(300)]
    euros = RateCard.of({"H200": "100", "L40S": "100"}, "EUR")
    acme, zoo = report(read_sessions(ledger), by="tag", tag="customer", rates=euros)
    assert (acme.price, acme.currency) == (Decimal("12.15"), "USD")
    assert (zoo.price, zoo.currency) == (Decimal(300), "EUR")  # it ran without any currency
    days = report(read_sessions(ledger), by="day", rates=euros)
    assert {(line.key, line.currency, line.price) for line in days} == {
        ("2026-05-31", "USD", Decimal("8.10")),
        ("2026-06-01", "USD", Decimal("4.05")),
        ("2026-06-01", "EUR", Decimal(300)),
    }


def test_a_later_card_prices_by_the_day_on_which_a_session_began(ledger: Path) -> None:
    *_, zoo = read_sessions(ledger)
    card = RateCard.parse(["H200=1", "L40S=1", "H200=50@2026-06-01", "L40S=50@2026-06-01"])
    for began, price in ((date(2026, 5, 31), 3), (date(2026, 6, 1), 150)):
        session = replace(zoo, began=datetime(began.year, began.month, began.day, 23, tzinfo=UTC))
        [line] = report([session], by="day", rates=card)
        assert (line.key, line.price) == ("2026-06-01", Decimal(price))


def test_since_counts_from_a_day_on(ledger: Path) -> None:
    sessions = read_sessions(ledger, since=date(2026, 6, 1))
    assert sum(line.usage.gpu_hours for line in report(sessions)) == pytest.approx(4.5)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, [*words])


def test_the_command_reports(ledger: Path) -> None:
    table = run("cost", "report", "--ledger", str(ledger), "--by", "tag", "--tag", "customer")
    assert table.exit_code == 0, table.stderr
    assert "acme" in table.stdout
    assert "12.15 USD" in table.stdout
    assert "unknown" in table.stdout
    printed = run("cost", "report", "--ledger", str(ledger), "--by", "day", "--json")
    lines = json.loads(printed.stdout)
    assert [line["key"] for line in lines] == ["2026-05-31", "2026-06-01"]
    assert lines[0]["price"] == "8.10"
    assert lines[0]["gpu_hours"] == 3.0
    table = run("cost", "report", "--ledger", str(ledger), "--since", "2026-06-01", "--csv")
    header, *rows = table.stdout.splitlines()
    assert header.startswith("key,sessions,killed,wall_hours,speaking_minutes,gpu_hours")
    assert len(rows) == 2


def test_the_command_says_what_is_wrong(tmp_path: Path, ledger: Path) -> None:
    missing = run("cost", "report", "--ledger", str(tmp_path / "none.db"))
    assert missing.exit_code == 2
    assert "there is no ledger" in missing.stderr
    both = run("cost", "report", "--ledger", str(ledger), "--csv", "--json")
    assert both.exit_code == 2


def test_tags_are_text_and_nothing_else(tmp_path: Path) -> None:
    path, session = tmp_path / "cost.db", Clock(agent="[/sales]", customer="[bold]")
    store = Store(path, NOON_US)
    session.now = 1.0
    store.write([session.beat("closed")], NOON_US)
    store.close()
    done = run("cost", "report", "--ledger", str(path), "--by", "tag")
    assert done.exit_code == 0, done.output
    assert "agent=[/sales] customer=[bold]" in done.stdout


def test_a_rate_that_prices_nothing_is_named(ledger: Path) -> None:
    words = ("cost", "report", "--ledger", str(ledger))
    assert "no h200 here, only H200, L40S" in run(*words, "--rate", "h200=3").stderr
    assert run(*words, "--rate", "H200=3").stderr == ""
    pounds = run(*words, "--by", "day", "--since", "2026-06-01", "--rate", "H200=3", "--rate",
                 "L40S=1", "--currency", "GBP")  # fmt: skip
    assert "10.50" not in pounds.stdout
    assert "7.00 GBP" in pounds.stdout
