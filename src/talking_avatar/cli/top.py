"""``talking-avatar top``: the sessions that run, as a table that lives."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from talking_avatar.cli.cost import DEFAULT_LEDGER, Rates, money, rate_card
from talking_avatar.cli.errors import errors_in_one_line

if TYPE_CHECKING:
    from rich.table import Table

    from talking_avatar.cost import RateCard
    from talking_avatar.ledger import LedgerSession, Line

COLUMNS = (
    "session", "tags", "state", "engine", "minutes", "speaking", "engine fps", "worst min.",
    "stalls", "missed", "GPU-hours", "price",
)  # fmt: skip
HIDDEN_WHERE_NARROW = ("engine", "speaking", "worst min.", "stalls")
WIDE_COLUMNS = 120
"""From so many on, a terminal has room for all `COLUMNS`."""


def top(
    ledger: Annotated[Path, typer.Option("--ledger", help="The file.")] = DEFAULT_LEDGER,
    rate: Rates = None,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between looks.")] = 1.0,
    ended: Annotated[int, typer.Option("--ended", min=0, help="Show so many that ended.")] = 5,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
) -> None:
    """Show the sessions that run, of all processes that write to a ledger, with their cost.

    Ends with Ctrl-C.
    """
    from rich.console import Console
    from rich.live import Live

    from talking_avatar.ledger import read_sessions

    with errors_in_one_line():
        card = rate_card(rate, None, "USD")
        console = Console()
        if not console.is_terminal:
            console = Console(width=140)

        def look() -> Table:
            return make_table(read_sessions(ledger), card, num_ended=ended, width=console.width)

        if once:
            console.print(look())
            return
        with Live(look(), console=console, auto_refresh=False, screen=True) as live:
            try:
                while True:
                    time.sleep(every)
                    live.update(look(), refresh=True)
            except KeyboardInterrupt:
                return


def make_table(
    sessions: tuple[LedgerSession, ...],
    rates: RateCard | None,
    *,
    num_ended: int,
    now: datetime | None = None,
    width: int | None = None,
) -> Table:
    """Lay sessions out: those that run, newest first, then the last that ended.

    Args:
        sessions: As read.
        rates: For what had no rate while it ran.
        num_ended: How many that ended are shown.
        now: For the title.
        width: Columns of the terminal: a narrow one gets less of each session, not less of each
            number.
    """
    from rich.table import Table

    from talking_avatar.ledger import report

    running = [s for s in sessions if s.state == "open"]
    over = sorted((s for s in sessions if s.state != "open"), key=lambda s: s.last_beat)
    shown = (*reversed(running), *reversed(over[-num_ended:] if num_ended else ()))
    gpus = sum(tally.device.is_gpu for s in running for tally in s.days[-1].devices)
    clock = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M:%S UTC")
    table = Table(
        title=f"{len(running)} sessions run, holding {gpus} GPUs   {clock}",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    hidden = HIDDEN_WHERE_NARROW if width is not None and width < WIDE_COLUMNS else ()
    names = [name for name in COLUMNS if name not in hidden]
    for name in names:
        justify: Literal["left", "right"] = "left" if name in ("session", "tags") else "right"
        table.add_column(name, justify=justify, no_wrap=name != "tags", overflow="fold")
    lines = {line.key: line for line in report(shown, rates=rates)}
    for session in shown:
        line = lines[session.session_id]
        style = "dim" if session.state != "open" else ("red" if _is_slow(session) else None)
        cells = _cells(session, line)
        table.add_row(*(cells[name] for name in names), style=style)
    return table


def _cells(session: LedgerSession, line: Line) -> dict[str, str]:
    """Give a session's cells by the names of `COLUMNS`."""
    from rich.markup import escape

    tags = " ".join(f"{name}={value}" for name, value in sorted(session.tags.items()))
    return {
        "session": session.session_id[:8],
        "tags": escape(tags),
        "state": session.state,
        "engine": escape(session.engine),
        "minutes": f"{session.wall_s / 60:.1f}",
        "speaking": f"{line.usage.speaking_s / 60:.1f}",
        "engine fps": _fps(session.engine_fps),
        "worst min.": _fps(session.worst_minute_fps),
        "stalls": f"{session.num_stalls}",
        "missed": f"{session.num_missed}",
        "GPU-hours": f"{line.usage.gpu_hours:.4f}",
        "price": money(line.price, line.currency),
    }


def _is_slow(session: LedgerSession) -> bool:
    from talking_avatar.engine.base import FPS  # here, so that --help stays quick

    return session.engine_fps is not None and session.engine_fps <= FPS


def _fps(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
