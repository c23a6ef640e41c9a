"""``talking-avatar bench``: what this machine does, in numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talking_avatar.cli import bench_gpu
from talking_avatar.cli.errors import errors_in_one_line

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

bench_app = typer.Typer(
    help="Measure this machine: all of it in two minutes, or one thing at length.",
    invoke_without_command=True,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="How long to measure.")]


@bench_app.callback()
def bench(context: typer.Context, as_json: Json = False) -> None:
    """Measure this machine: all of it in two minutes, or one thing at length."""
    if context.invoked_subcommand is not None:
        return
    from talking_avatar.bench import run_sessions, run_turns
    from talking_avatar.bench_engine import run_engine

    _measure("engine alone", run_engine(), as_json)
    _measure("live sessions with H.264: 1", run_sessions(1, seconds=15), as_json)
    _measure("live sessions with H.264: 3", run_sessions(3, seconds=20), as_json)
    _measure("say() to first frame", run_turns(100), as_json)


@bench_app.command()
def engine(seconds: Seconds = 10.0, as_json: Json = False) -> None:
    """The engine alone: milliseconds a frame, of a core and of the clock."""
    from talking_avatar.bench_engine import run_engine

    _measure("engine alone", run_engine(seconds), as_json)


@bench_app.command()
def sessions(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1)] = 3,
    seconds: Seconds = 30.0,
    is_encoding: Annotated[
        bool, typer.Option("--encode/--no-encode", help="H.264 and AAC, or frames only.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Live sessions side by side: cores, late frames, stalls."""
    from talking_avatar.bench import run_sessions

    measured = run_sessions(number, seconds=seconds, encode="h264" if is_encoding else "none")
    _measure(f"live sessions: {number}", measured, as_json)


@bench_app.command()
def turns(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1)] = 100, as_json: Json = False
) -> None:
    """From say() to the first frame of that turn, at random phases."""
    from talking_avatar.bench import run_turns

    _measure("say() to first frame", run_turns(number), as_json)


@bench_app.command()
def soak(
    minutes: Annotated[float, typer.Option("--minutes", min=0.1)] = 20.0, as_json: Json = False
) -> None:
    """One session for long, interrupted at random: drift, misses, memory."""
    from talking_avatar.bench import run_soak

    _measure("soak", run_soak(minutes), as_json)


@bench_app.command()
def meter(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1)] = 1, as_json: Json = False
) -> None:
    """What counting costs itself: percent of a core and bytes a session, ledger included."""
    from talking_avatar.bench_meter import run_meter

    _measure("meter", run_meter(number), as_json)


bench_gpu.register(bench_app)


def _measure(title: str, measuring: Coroutine[Any, Any, DataclassInstance], as_json: bool) -> None:
    from talking_avatar.render import peak_rss_bytes

    with errors_in_one_line():
        values = asdict(asyncio.run(measuring))
    values["peak_rss_bytes"] = peak_rss_bytes()
    if as_json:
        typer.echo(json.dumps({"title": title, **values}))
        return
    typer.echo(title)
    for name, value in values.items():
        typer.echo(f"  {name:<28} {_shown(value)}")


def _shown(value: object) -> str:
    match value:
        case float():
            return f"{value:.4g}"
        case tuple() | list():
            return ", ".join(_shown(each) for each in value) or "-"
        case dict():
            return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
        case _:
            return str(value)
