"""``talking-avatar render`` and ``demo``: one photo and one speech file into a video file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talking_avatar.cli.errors import errors_in_one_line

if TYPE_CHECKING:
    from talking_avatar.config import EngineConfig
    from talking_avatar.render import Progress, RenderReport

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
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", help="Folder of the diffusion engine's weights.")
]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help="Where the diffusion engine runs; again for each further GPU."),
]
DEFAULT_SIZE = "704x1088"


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
    with errors_in_one_line():
        config = engine_config(engine, size, checkpoint, device or [])
        _check_report_path(report, output)
        done = _render(photo, speech, output, config, seed, face)
        if report is not None:
            report.write_text(json.dumps(asdict(done), indent=2) + "\n")
        _print_summary(done, output)


def demo(
    output: Output = Path("out/demo.mp4"),
    size: Size = DEFAULT_SIZE,
    seed: Seed = 0,
    report: Report = None,
) -> None:
    """Render the bundled portrait speaking the bundled sentence."""
    from talking_avatar.assets import portrait_path, speech_path

    with errors_in_one_line():
        output.parent.mkdir(parents=True, exist_ok=True)
    render(portrait_path(), speech_path(), output, size=size, seed=seed, report=report)
    typer.echo("live     talking-avatar serve shows it in a browser, where it speaks what you type")


def engine_config(
    engine: str, size: str, checkpoint: Path | None, devices: list[str]
) -> EngineConfig:
    """Give the configuration that a command line asks for.

    Raises:
        ValueError: The options do not go together.
    """
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


def _check_report_path(report: Path | None, output: Path) -> None:
    """Refuse before minutes of rendering, not after."""
    if report == output:
        raise ValueError(f"--report {report} would overwrite the video: give it another name")
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
