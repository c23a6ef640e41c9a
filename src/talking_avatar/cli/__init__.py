"""The ``talking-avatar`` command: what a person types, and what comes back.

Takes words of a command line, gives text and an exit status: 0 done, 1 failed, 2 the input was
refused, 130 interrupted. Each command has a file here; the work itself is done by the rooms below,
which a command imports when it runs.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from talking_avatar._version import __version__
from talking_avatar.cli.bench import bench_app
from talking_avatar.cli.cost import cost_app
from talking_avatar.cli.doctor import doctor
from talking_avatar.cli.plan import plan
from talking_avatar.cli.render import demo, render
from talking_avatar.cli.serve import serve
from talking_avatar.cli.top import top
from talking_avatar.cli.weights import weights_app

app = typer.Typer(
    name="talking-avatar",
    help="One photo becomes a live talking character.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(render)
app.command()(demo)
app.command()(serve)
app.command()(doctor)
app.command()(plan)
app.command()(top)
app.add_typer(bench_app, name="bench")
app.add_typer(cost_app, name="cost")
app.add_typer(weights_app, name="weights")


def main() -> None:
    """Run the command line."""
    _quiet_logs()
    app()


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    """One photo becomes a live talking character."""


def _quiet_logs() -> None:
    """Send warnings to stderr, so that stdout holds results only."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
