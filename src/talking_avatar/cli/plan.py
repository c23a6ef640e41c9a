"""``talking-avatar plan``: what a model of the diffusion engine costs, by arithmetic."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from talking_avatar.cli.errors import errors_in_one_line

USUAL_RANKS = (1, 2, 3, 4, 8)


def plan(
    model: Annotated[
        str, typer.Option("--config", metavar="NAME", help="A named size, such as avatar-57b.")
    ] = "avatar-57b",
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="Ranks; left out: every usual number.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared-decoder", help="The decoder shares a rank's GPU.")
    ] = False,
) -> None:
    """Say what a model costs by arithmetic: parameters, FLOPs, tokens, memory per rank."""
    from rich.console import Console

    from talking_avatar.engine.diffusion.config import named_config
    from talking_avatar.engine.diffusion.plan import describe, render

    with errors_in_one_line():
        config = named_config(model)
        decoder: Literal["shared", "own"] = "shared" if shared else "own"
        ranks = (tp,) if tp is not None else USUAL_RANKS
        Console().print(render(*(describe(config, n, decoder=decoder) for n in ranks)))
