"""The ``talking-avatar`` command: what a person types, and what comes back.

Takes words of a command line, gives text and an exit status: 0 done, 1 failed, 2 the input was
refused, 130 interrupted. The work itself is in `render`, `doctor` and `bench`, loaded by the
command that needs it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from talking_avatar._version import __version__
from talking_avatar.errors import (
    MissingDependency,
    PhotoError,
    SeveralFaces,
    TalkingAvatarError,
)

if TYPE_CHECKING:
    from types import ModuleType

    from talking_avatar.config import EngineConfig
    from talking_avatar.engine.diffusion.weights.commands import Summary
    from talking_avatar.render import Progress, RenderReport

app = typer.Typer(
    name="talking-avatar",
    help="One photo becomes a live talking character.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

weights_app = typer.Typer(help="Checkpoints of the diffusion engine.", no_args_is_help=True)
app.add_typer(weights_app, name="weights")

Output = Annotated[Path, typer.Option("--output", "-o", help="Video to write: .mp4, .mov or .mkv.")]
EngineName = Annotated[str, typer.Option("--engine", help="portrait or diffusion.")]
Size = Annotated[str, typer.Option("--size", metavar="WxH", help="Pixels, both even.")]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same blinks and head motion.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="R.json", help="Write what it took as JSON.")
]
Face = Annotated[
    int | None, typer.Option("--face", help="Which face, in a photo of several: 0 is the largest.")
]
Folder = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Has config.json.")]
NewFolder = Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to write; a new one.")]
Precision = Annotated[
    str, typer.Option("--precision", help="Of the layers' matrices: fp32, bf16 or fp8.")
]
Device = Annotated[
    str, typer.Option("--device", help="Where rounding to fp8 happens: cpu, cuda:0.")
]
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", help="Folder of the diffusion engine's weights.")
]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help="Where the diffusion engine runs; again for each further GPU."),
]
DEFAULT_SIZE = "704x1088"


def main() -> None:
    """Run the command line."""
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
    _quiet_logs()


@app.command()
def render(
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="Any still image with a face.")],
    speech: Annotated[
        Path, typer.Argument(metavar="SPEECH", help="Any audio file, or a video's sound.")
    ],
    output: Output,
    engine: EngineName = "portrait",
    size: Size = DEFAULT_SIZE,
    seed: Seed = 0,
    report: Report = None,
    face: Face = None,
    checkpoint: Checkpoint = None,
    device: Devices = None,
) -> None:
    """Render PHOTO speaking SPEECH into a video file."""
    with _errors_in_one_line():
        config = _engine_config(engine, size, checkpoint, device or [])
        _check_report_path(report)
        done = _render(photo, speech, output, config, seed, face)
        if report is not None:
            report.write_text(json.dumps(asdict(done), indent=2) + "\n")
        _print_summary(done, output)


@app.command()
def demo(
    output: Output = Path("out/demo.mp4"),
    size: Size = DEFAULT_SIZE,
    seed: Seed = 0,
    report: Report = None,
) -> None:
    """Render the bundled portrait speaking the bundled sentence."""
    from talking_avatar.assets import portrait_path, speech_path

    with _errors_in_one_line():
        output.parent.mkdir(parents=True, exist_ok=True)
    render(portrait_path(), speech_path(), output, size=size, seed=seed, report=report)


@app.command()
def doctor() -> None:
    """Say what works on this machine, and what would not."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from talking_avatar.doctor import examine, is_healthy

    marks = {"ok": "[green]ok[/]", "absent": "[yellow]absent[/]", "broken": "[red]broken[/]"}
    findings = examine()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(marks[finding.state], finding.subject, escape(finding.detail))
    Console().print(table)
    if not is_healthy(findings):
        typer.echo("error: the portrait engine does not work here: see what is broken", err=True)
        raise typer.Exit(1)


@weights_app.command("show")
def show_weights(folder: Folder) -> None:
    """Check a checkpoint's names, shapes and headers, and say what it is."""
    with _errors_in_one_line():
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
    with _errors_in_one_line():
        done = _weights().import_wan(source, target, precision=precision, device=device)
        _print_checkpoint(done)


@weights_app.command("quantize")
def quantize_weights(folder: Folder, target: NewFolder, device: Device = "cpu") -> None:
    """Save a checkpoint's FP8 form, so that opening it rounds nothing."""
    with _errors_in_one_line():
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
    with _errors_in_one_line():
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


def _engine_config(
    engine: str, size: str, checkpoint: Path | None, devices: list[str]
) -> EngineConfig:
    from talking_avatar.config import DiffusionConfig, PortraitConfig

    match engine:
        case "portrait":
            if checkpoint or devices:
                raise ValueError("--checkpoint and --device belong to --engine diffusion")
            width, height = _parsed_size(size)
            return PortraitConfig(width=width, height=height)
        case "diffusion":
            if size != DEFAULT_SIZE:
                raise ValueError("--size belongs to the portrait engine: a model has its own size")
            return DiffusionConfig(checkpoint=checkpoint, devices=tuple(devices) or ("cpu",))
        case _:
            raise ValueError(f"--engine {engine}: choose portrait or diffusion")


def _parsed_size(size: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})[xX×](\d{1,5})", size)
    if match is None:
        raise ValueError(f"--size {size}: write WIDTHxHEIGHT, such as {DEFAULT_SIZE}")
    return int(match[1]), int(match[2])


def _check_report_path(report: Path | None) -> None:
    """Refuse before minutes of rendering, not after."""
    if report is not None and not report.parent.is_dir():
        raise FileNotFoundError(f"no folder {report.parent} for the report")


def _render(
    photo: Path, speech: Path, output: Path, config: EngineConfig, seed: int, face: int | None
) -> RenderReport:
    import asyncio

    from talking_avatar.render import render as render_file

    with _progress_bar() as on_progress:
        return asyncio.run(
            render_file(
                photo,
                speech,
                output,
                engine=config,
                face=face,
                seed=seed,
                on_progress=on_progress,
                on_warning=lambda warning: typer.echo(f"note: {warning.message}", err=True),
            )
        )


@contextmanager
def _progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Give what shows a rendering's progress: a bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: None
        return
    columns = (TextColumn("rendering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("rendering", total=None)
        yield lambda progress: bar.update(
            task, completed=progress.frames, total=progress.total_frames
        )


def _print_summary(report: RenderReport, output: Path) -> None:
    first_frame = "-" if report.first_frame_s is None else f"{report.first_frame_s * 1e3:.0f} ms"
    rows = [
        ("video", f"{output}"),
        ("", f"{report.width}x{report.height}, {report.frames} frames at {report.fps} fps, "
             f"{report.duration_s:.2f} s"),
        ("speed", f"{report.render_fps:.1f} fps, {report.real_time_factor:.2f}x real time"),
        ("latency", f"{first_frame} to the first frame, after {report.prepare_s:.2f} s to prepare"),
        ("CPU", f"{report.cpu_cores:.2f} cores"),
        ("GPU", f"{report.gpu_hours:g} hours"),
    ]  # fmt: skip
    for name, value in rows:
        typer.echo(f"{name:<8} {value}")


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Turn what the user can mend into one line and a status; a defect keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted: nothing was written", 130)
    except SeveralFaces as error:
        _fail(f"{error} (--face chooses one)", 2)
    except PhotoError as error:
        _fail(str(error), 2)
    except (TalkingAvatarError, ValueError, OSError) as error:
        _fail(_first_reason(error), 2)


def _first_reason(error: Exception) -> str:
    """Give pydantic's first complaint instead of its report of several lines."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"].removeprefix("Value error, ")
    return str(error)


def _fail(message: str, status: int) -> NoReturn:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    raise typer.Exit(status)


def _quiet_logs() -> None:
    """Send warnings to stderr, so that stdout holds results only."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
