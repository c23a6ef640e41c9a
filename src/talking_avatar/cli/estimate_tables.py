"""What ``cost estimate`` and ``plan`` print: tables for people, a row for programs."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import typer

from talking_avatar.cli.tables import print_table
from talking_avatar.engine.base import FPS
from talking_avatar.engine.diffusion.step_time import SMALLEST_PARAMETERS

if TYPE_CHECKING:
    from rich.table import Table

    from talking_avatar.engine.diffusion.calibration import Residual
    from talking_avatar.engine.diffusion.placement import Candidate, HardwarePlan
    from talking_avatar.estimate import Estimate


def _table(title: str | None, first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _money(amount: Decimal | None, currency: str) -> str:
    from talking_avatar.cli.cost import money

    return money(amount, currency)


def print_estimate(hardware: str, estimate: Estimate) -> None:
    """Say one estimate in lines."""
    candidate, demand = estimate.candidate, estimate.demand
    held = " + ".join(f"{num} {kind}" for kind, num in candidate.gpus_held.items())
    tight = ", less than the prediction's own error" if candidate.is_tight else ""
    currency = estimate.currency
    rows = [
        ("placement", f"{candidate.placement.name}: {held} a session"),
        ("step", f"{candidate.parts.step_s * 1e3:.1f} ms of "
                 f"{candidate.report.config.chunk_s * 1e3:.1f} allowed"),
        ("bottleneck", candidate.binds),
        ("rate", f"{candidate.fps:.1f} fps, headroom {candidate.headroom:.1%}{tight}"),
        ("memory", f"{candidate.rank_bytes / 1e9:.1f} GB on a rank's GPU"
                   + (f", {candidate.decoder_bytes / 1e9:.1f} GB on the decoder's"
                      if candidate.decoder_bytes else "")),
        ("sessions", f"{demand.sessions} at most, {demand.busy:.0%} of them on average, "
                     f"{demand.hours:g} hours"),
        ("peak", f"{estimate.peak_gpus:,} GPUs"),
        ("GPU-hours", f"{estimate.gpu_hours:,.1f} held by sessions, "
                      f"{estimate.fleet_gpu_hours:,.1f} if the peak's are kept throughout"),
        ("a session-hour", _money(estimate.price_per_session_hour, currency)),
        (f"{demand.conversation_s / 60:g} minutes",
         _money(estimate.price_per_conversation, currency)),
        ("in all", f"{_money(estimate.price, currency)} for sessions, "
                   f"{_money(estimate.fleet_price, currency)} if kept throughout"),
    ]  # fmt: skip
    table = _table(f"{candidate.report.config.name} on {hardware}, predicted", "", "")
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    print_table(table)


def print_comparison(names: Sequence[str], estimates: Sequence[Estimate]) -> None:
    """A line for each hardware."""
    from talking_avatar.cli.cost import digits

    currency = estimates[0].currency
    table = _table(
        "\nOther hardware, each with its best placement", "hardware", "placement", "GPUs",
        "step ms", "fps", "binds", f"{currency}/hour", f"{currency} in all", "",
    )  # fmt: skip
    for name, estimate in zip(names, estimates, strict=True):
        candidate = estimate.candidate
        is_live = candidate.is_live
        table.add_row(
            name, candidate.placement.name, f"{estimate.gpus_per_session}",
            f"{candidate.parts.step_s * 1e3:.1f}", f"{candidate.fps:.1f}", candidate.binds,
            digits(estimate.price_per_session_hour) if is_live else "",
            digits(estimate.price) if is_live else "",
            "REFUSED" if not is_live else candidate.verdict,
        )  # fmt: skip
    print_table(table)


def print_plan(plan: HardwarePlan) -> None:
    """A line for each placement: whether it is live, then where its step's time goes."""
    verdicts = _table(
        f"Placements on {plan.hardware.name}, predicted", "placement", "GPUs", "step ms", "fps",
        "GB a rank", "decoder's", "binds", "",
    )  # fmt: skip
    parts = _table(
        "\nMilliseconds of a step", "placement", "products", "attention", "wires", "cache",
        "launch", "decoder",
    )  # fmt: skip
    for candidate in plan.candidates:
        style = "bold" if candidate is plan.best else None
        verdicts.add_row(*_verdict_cells(candidate), style=style)
        parts.add_row(*_part_cells(candidate), style=style)
    print_table(verdicts)
    print_table(parts)
    best = plan.best
    if best is not None:
        tight = (
            ": less than the prediction's own error of 10 %, so measure it" if best.is_tight else ""
        )
        typer.echo(
            f"\n{best.placement.name} holds {FPS} fps with {best.headroom:.1%} to spare{tight}"
        )
    if plan.candidates[0].report.token_parameters < SMALLEST_PARAMETERS:
        typer.echo(
            "\nA model below a billion parameters is bound by latency that is not predicted: "
            "these times are lower bounds."
        )


def _verdict_cells(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.placement.name, f"{candidate.placement.gpus_held}",
        f"{candidate.parts.step_s * 1e3:.1f}", f"{candidate.fps:.1f}",
        f"{candidate.rank_bytes / 1e9:.1f}",
        f"{candidate.decoder_bytes / 1e9:.1f}" if candidate.decoder_bytes else "",
        candidate.binds, candidate.verdict,
    )  # fmt: skip


def _part_cells(candidate: Candidate) -> tuple[str, ...]:
    parts = candidate.parts
    own = (parts.products, parts.attention, parts.wires, parts.upkeep, parts.launch)
    decoder = (
        f"+{parts.contention * 1e3:.1f}" if parts.shares_gpu else f"|{parts.decoder * 1e3:.1f}"
    )
    return candidate.placement.name, *(f"{part * 1e3:.1f}" for part in own), decoder


def print_residuals(residuals: Sequence[Residual]) -> None:
    """Predictions beside published numbers, then the constants within their bounds."""
    from talking_avatar.engine.diffusion.calibration import BOUNDS
    from talking_avatar.engine.diffusion.step_time import CONSTANTS

    table = _table(
        "Predicted beside published", "", "read as", "published", "predicted", "error", "left out",
        "",
    )  # fmt: skip
    table.columns[1].justify = "left"
    table.columns[0].no_wrap = table.columns[1].no_wrap = False
    for r in residuals:
        digits = 2 if r.row.unit == "x" else 1
        left_out = "" if r.left_out_error is None else f"{r.left_out_error:+.1%}"
        table.add_row(
            r.row.what if r.is_chosen else "", r.reading.name,
            f"{r.row.value:.{digits}f} {r.row.unit}", f"{r.predicted:.{digits}f}",
            f"{r.error:+.1%}", left_out, r.verdict,
        )  # fmt: skip
    fitted = _table("\nFitted constants", "", "value", "bounds", "expected from")
    fitted.columns[3].justify, fitted.columns[3].no_wrap = "left", False
    for name, bound in BOUNDS.items():
        value, bounds = getattr(CONSTANTS, name), f"{bound.low:g} to {bound.high:g}"
        fitted.add_row(name.replace("_", " "), f"{value:g}", bounds, bound.source)
    print_table(table)
    print_table(fitted)


def to_row(hardware: str, estimate: Estimate) -> dict[str, str | int | float | None]:
    """Give an estimate as plain values; money as text, so that no cent is lost."""

    def text(amount: Decimal | None) -> str | None:
        return None if amount is None else str(amount)

    candidate = estimate.candidate
    return {
        "hardware": hardware,
        "placement": candidate.placement.name,
        "gpus_per_session": estimate.gpus_per_session,
        "step_ms": round(candidate.parts.step_s * 1e3, 3),
        "fps": round(candidate.fps, 3),
        "headroom": round(candidate.headroom, 4),
        "binds": candidate.binds,
        "peak_gpus": estimate.peak_gpus,
        "gpu_hours": estimate.gpu_hours,
        "fleet_gpu_hours": estimate.fleet_gpu_hours,
        "price_per_session_hour": text(estimate.price_per_session_hour),
        "price_per_conversation": text(estimate.price_per_conversation),
        "price": text(estimate.price),
        "fleet_price": text(estimate.fleet_price),
        "currency": estimate.currency,
    }
