"""``talking-avatar cost``: what sessions have cost, and what they would."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talking_avatar.cli.errors import errors_in_one_line, fail

if TYPE_CHECKING:
    from talking_avatar.cost import RateCard
    from talking_avatar.ledger import Line

cost_app = typer.Typer(help="What sessions have cost, and what they would cost.")
DEFAULT_LEDGER = Path("talking-avatar-cost.db")

Rates = Annotated[
    list[str] | None,
    typer.Option("--rate", metavar="KIND=PRICE", help="Per hour, e.g. H100=2.99. Repeatable."),
]
RatesFile = Annotated[Path | None, typer.Option("--rates", help="A rate card, as a JSON file.")]
Currency = Annotated[str, typer.Option("--currency", help="Of every --rate.")]


@cost_app.command("report")
def report(
    ledger: Annotated[Path, typer.Option("--ledger", help="The file.")] = DEFAULT_LEDGER,
    since: Annotated[
        datetime | None, typer.Option("--since", formats=["%Y-%m-%d"], help="First day, UTC.")
    ] = None,
    by: Annotated[str, typer.Option("--by", metavar="session|day|tag", help="A line for each.")]
    = "session",
    tag: Annotated[str | None, typer.Option("--tag", help="With --by tag: this one only.")] = None,
    rate: Rates = None,
    rates: RatesFile = None,
    currency: Currency = "USD",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Sum up what the ledger's sessions have cost.

    --rate and --rates price only what had no rate while it ran.
    """
    from talking_avatar import ledger as room

    if by not in ("session", "day", "tag"):
        fail(f"--by {by} must be session, day or tag", 2)
    if as_csv and as_json:
        fail("--csv and --json exclude each other", 2)
    with errors_in_one_line():
        card = rate_card(rate, rates, currency)
        sessions = room.read_sessions(ledger, since=None if since is None else since.date())
        lines = room.report(sessions, by=by, tag=tag, rates=card)  # type: ignore[arg-type]
    _note_idle_rates(rate, card, lines)
    rows = [_row(line) for line in lines]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        typer.echo(_as_csv(rows), nl=False)
    else:
        _print_table(lines, by)


def _note_idle_rates(
    words: list[str] | None, card: RateCard | None, lines: tuple[Line, ...]
) -> None:
    """Say on stderr which --rate prices nothing: a misspelled kind would pass unseen."""
    if not words or card is None:
        return
    kinds = sorted({device.kind for line in lines for device in line.usage.devices})
    idle = sorted({rate.kind for rate in card.rates} - set(kinds))
    if lines and idle:
        typer.echo(f"note: no {', '.join(idle)} here, only {', '.join(kinds)}", err=True)
    elif lines and card.currency not in {line.currency for line in lines}:
        typer.echo(f"note: nothing here is priced in {card.currency}", err=True)


def rate_card(words: list[str] | None, path: Path | None, currency: str) -> RateCard | None:
    """Make a card of what was given; None if nothing was.

    Raises:
        ValueError: Both were given, or one is no rate.
        OSError: The file cannot be read.
    """
    from talking_avatar.cost import RateCard

    if words and path:
        raise ValueError("--rate and --rates exclude each other")
    if path is not None:
        return RateCard.load(path)
    return RateCard.parse(words, currency) if words else None


def money(amount: Decimal | None, currency: str) -> str:
    """Show a price to the cent; below a unit to four digits, so that a minute has one."""
    return "unknown" if amount is None else f"{digits(amount)} {currency}"


def digits(amount: Decimal | None) -> str:
    """Show a price as `money` does, where a table's head says the currency."""
    if amount is None:
        return "unknown"
    cents = Decimal("0.01") if abs(amount) >= 1 else Decimal("0.0001")
    return f"{amount.quantize(cents):,}"


def _row(line: Line) -> dict[str, str | int | float | None]:
    usage = line.usage
    active, held = sum(d.active_s for d in usage.devices), sum(d.held_s for d in usage.devices)
    row: dict[str, str | int | float | None] = {
        "key": line.key,
        "sessions": line.num_sessions,
        "killed": line.num_killed,
        "wall_hours": usage.wall_s / 3600,
        "speaking_minutes": usage.speaking_s / 60,
        "gpu_hours": usage.gpu_hours,
        "core_hours": usage.core_hours,
        "active_share": active / held if held else None,
        "energy_wh": usage.energy_wh,
        "price": None if line.price is None else str(line.price.normalize() + Decimal("0.00")),
        "currency": line.currency,
    }
    return row


def _as_csv(rows: list[dict[str, str | int | float | None]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _print_table(lines: tuple[Line, ...], by: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from talking_avatar.cli.tables import print_table

    if not lines:
        typer.echo("the ledger has no session in that time", err=True)
        return
    table = Table(box=None, pad_edge=False)
    is_by_session = by == "session"
    table.add_column("", overflow="fold")
    for name in ("sessions", "hours", "speaking min", "GPU-hours", "core-hours", "price"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        killed = f" ({line.num_killed} killed)" if line.num_killed else ""
        table.add_row(
            # Eight digits tell sessions apart, and leave room; --csv and --json have all of them.
            line.key[:8] if is_by_session else escape(line.key) or "(no tag)",
            f"{line.num_sessions}{killed}",
            f"{line.usage.wall_s / 3600:.3f}",
            f"{line.usage.speaking_s / 60:.1f}",
            f"{line.usage.gpu_hours:.4f}",
            f"{line.usage.core_hours:.4f}",
            money(line.price, line.currency),
        )
    print_table(table)


@cost_app.command("estimate")
def estimate(
    hardware: Annotated[
        str, typer.Option("--hardware", metavar="4xH100", help="GPUs that one session may use.")
    ],
    model: Annotated[str, typer.Option("--config", metavar="NAME", help="A named size.")]
    = "avatar-57b",
    rate: Rates = None,
    rates: RatesFile = None,
    currency: Currency = "USD",
    sessions: Annotated[int, typer.Option("--sessions", help="At the busiest moment.")] = 1,
    hours: Annotated[float, typer.Option("--hours", help="That the product is open.")] = 1.0,
    busy: Annotated[float, typer.Option("--busy", help="Mean share of the sessions that run.")]
    = 1.0,
    minutes: Annotated[float, typer.Option("--minutes", help="Of one conversation.")] = 10.0,
    power_cap: Annotated[float, typer.Option("--power-cap", help="Share of full power.")] = 1.0,
    compare: Annotated[bool, typer.Option(help="Show other hardware beside it.")] = True,
    plot: Annotated[Path | None, typer.Option("--plot", help="Save the comparison: .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Say what sessions of the diffusion engine would cost, before any GPU is rented.

    Exit status 1: nothing on that hardware holds 24 frames a second.
    """
    from talking_avatar import estimate as room
    from talking_avatar.cli.estimate_tables import print_comparison, print_estimate, to_row
    from talking_avatar.engine.diffusion.config import named_config
    from talking_avatar.engine.diffusion.gpus import Hardware, check_kinds

    if plot is not None and plot.suffix.lower() != ".svg":
        fail(
            f"--plot {plot.name}: only SVG is drawn; give {plot.with_suffix('.svg').name}, which "
            "browsers show and any converter turns into other formats",
            2,
        )
    with errors_in_one_line():
        card = rate_card(rate, rates, currency)
        if rate and card is not None:
            check_kinds(one.kind for one in card.rates)
        config = named_config(model)
        demand = room.Demand(sessions=sessions, hours=hours, busy=busy, conversation_s=minutes * 60)
        host = Hardware.parse(hardware, power_cap=power_cap)
        names = (hardware, *(n for n in room.COMPARED if n != hardware))
        hosts = (host, *(Hardware.parse(n, power_cap=power_cap) for n in names[1:]))
        shown = [
            room.of_candidate(candidate, demand, rates=card)
            for _, candidate in room.compare(config, hosts)
        ]
        if plot is not None:
            from talking_avatar.estimate_plot import draw

            plot.write_text(draw(shown, names))
        try:
            ours = room.estimate(config, host, demand, rates=card)
        except room.NotLiveError as error:
            if compare and not as_json:
                print_comparison(names, shown)
            fail(str(error), 1)
    if as_json:
        typer.echo(json.dumps(to_row(hardware, ours), indent=2))
        return
    print_estimate(hardware, ours)
    if compare:
        print_comparison(names, shown)
