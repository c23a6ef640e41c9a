"""``talking-avatar plan``: does a model fit, does it hold 24 frames a second, and what would."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from talking_avatar.cli.errors import errors_in_one_line, fail

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
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", metavar="4xH200", help="Try every placement on these GPUs."),
    ] = None,
    power_cap: Annotated[
        float, typer.Option("--power-cap", help="With --hardware: share of full power.")
    ] = 1.0,
    published: Annotated[
        bool, typer.Option("--published", help="Show the time model beside published figures.")
    ] = False,
) -> None:
    """Say what a model costs: parameters, FLOPs, tokens, memory per rank; or where it is live.

    With --hardware, exit status 1 says that nothing there holds 24 frames a second.
    """
    if published:
        from talking_avatar.cli.estimate_tables import print_residuals
        from talking_avatar.engine.diffusion.calibration import residuals

        print_residuals(residuals())
        return
    with errors_in_one_line():
        if hardware is None:
            _by_arithmetic(model, tp, shared)
        else:
            _on_hardware(model, hardware, power_cap)


def _by_arithmetic(model: str, tp: int | None, shared: bool) -> None:
    from rich.console import Console

    from talking_avatar.engine.diffusion.config import named_config
    from talking_avatar.engine.diffusion.plan import describe, render

    config = named_config(model)
    decoder: Literal["shared", "own"] = "shared" if shared else "own"
    ranks = (tp,) if tp is not None else USUAL_RANKS
    Console().print(render(*(describe(config, n, decoder=decoder) for n in ranks)))


def _on_hardware(model: str, hardware: str, power_cap: float) -> None:
    from talking_avatar.cli.estimate_tables import print_plan
    from talking_avatar.engine.diffusion.config import named_config
    from talking_avatar.engine.diffusion.gpus import Hardware
    from talking_avatar.engine.diffusion.placement import plan_for, refusal

    config = named_config(model)
    found = plan_for(config, Hardware.parse(hardware, power_cap=power_cap))
    print_plan(found)
    if found.best is None:
        fail(refusal(config, found), 1)
