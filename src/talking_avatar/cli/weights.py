"""``talking-avatar weights``: checkpoints of the diffusion engine, shown, imported, made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talking_avatar.cli.errors import errors_in_one_line
from talking_avatar.errors import MissingDependency

if TYPE_CHECKING:
    from types import ModuleType

    from talking_avatar.engine.diffusion.weights.commands import Summary

weights_app = typer.Typer(help="Checkpoints of the diffusion engine.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Has config.json.")]
NewFolder = Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to write; a new one.")]
Precision = Annotated[
    str, typer.Option("--precision", help="Of the layers' matrices: fp32, bf16 or fp8.")
]
Device = Annotated[
    str, typer.Option("--device", help="Where rounding to fp8 happens: cpu, cuda:0.")
]


@weights_app.command("show")
def show_weights(folder: Folder) -> None:
    """Check a checkpoint's names, shapes and headers, and say what it is."""
    with errors_in_one_line():
        _print_checkpoint(_weights().describe(folder))


@weights_app.command("import")
def import_weights(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Wan2.2-TI2V-5B as diffusers has it: transformer/ and vae/."
        ),
    ],
    target: NewFolder,
    precision: Precision = "bf16",
    device: Device = "cpu",
) -> None:
    """Convert a folder of diffusers into a checkpoint."""
    with errors_in_one_line():
        done = _weights().import_wan(source, target, precision=precision, device=device)
        _print_checkpoint(done)


@weights_app.command("quantize")
def quantize_weights(folder: Folder, target: NewFolder, device: Device = "cpu") -> None:
    """Save a checkpoint's FP8 form, so that opening it rounds nothing."""
    with errors_in_one_line():
        _print_checkpoint(_weights().quantize_checkpoint(folder, target, device=device))


@weights_app.command("random")
def draw_weights(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A named size, such as tiny or avatar-small.")
    ],
    target: NewFolder,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another model.")] = 0,
    precision: Precision = "bf16",
    device: Device = "cpu",
) -> None:
    """Save random weights: a model that has learned nothing, for benchmarks."""
    with errors_in_one_line():
        done = _weights().draw_checkpoint(
            model, target, seed=seed, precision=precision, device=device
        )
        _print_checkpoint(done)


def _weights() -> ModuleType:
    try:
        from talking_avatar.engine.diffusion.weights import commands
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f'checkpoints need {error.name}: pip install "talking-avatar[diffusion]"'
        ) from error
    return commands


def _print_checkpoint(summary: Summary) -> None:
    rows = [
        ("folder", str(summary.folder)),
        ("model", f"{summary.model}, {summary.num_parameters / 1e6:,.1f} M parameters"),
        ("DiT", f"{summary.dit_bytes / 1e6:,.1f} MB, matrices in {summary.precision}"),
        ("codec", f"{summary.codec_bytes / 1e6:,.1f} MB"),
    ]
    for name, value in rows:
        typer.echo(f"{name:<8} {value}")
