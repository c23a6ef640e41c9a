"""``talking-avatar bench step | cache | attention | linear | allreduce``: kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talking_avatar.cli.errors import errors_in_one_line
from talking_avatar.errors import EngineError, MissingDependency

if TYPE_CHECKING:
    from talking_avatar.engine.diffusion.bench import Row, Subject

SUBJECTS: dict[Subject, str] = {
    "step": "One rank's whole step: baseline and ring cache, as one CUDA graph each.",
    "cache": "Keeping the cache: written once, against rotated anew at every call.",
    "attention": "Attention over the ring, against the library's.",
    "linear": "The eight-bit products of one rank, against the library's.",
    "allreduce": "The sum over ranks, on ranks that share one GPU.",
}
"""What can be measured, and its help."""


def register(app: typer.Typer) -> None:
    """Add one command for each subject."""
    for subject, summary in SUBJECTS.items():
        app.command(subject, help=summary)(_command(subject))


def _command(subject: Subject) -> Callable[..., None]:
    def measure(
        model: Annotated[
            str, typer.Option("--config", metavar="NAME", help="A named size.")
        ] = "avatar-57b",
        tp: Annotated[int, typer.Option("--tp", min=1, help="Ranks; one is measured.")] = 4,
        sustain_s: Annotated[
            float, typer.Option("--sustain", help="step: seconds of load beforehand.")
        ] = 60.0,
        num_replays: Annotated[
            int, typer.Option("--replays", min=1, help="step: replays that are timed.")
        ] = 200,
        json_file: Annotated[
            Path | None, typer.Option("--json", metavar="FILE", help="Save the report too.")
        ] = None,
    ) -> None:
        with errors_in_one_line():
            _run(subject, model, tp, sustain_s, num_replays, json_file)

    return measure


def _run(
    subject: Subject, model: str, tp: int, sustain_s: float, num_replays: int, file: Path | None
) -> None:
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f'bench {subject} needs torch: pip install "talking-avatar[diffusion]"'
        ) from error
    if not torch.cuda.is_available():
        raise EngineError(f"bench {subject} needs a CUDA GPU; torch {torch.__version__} sees none")
    from talking_avatar.engine.diffusion.bench import Report, run

    def show(row: Row) -> None:
        (line,) = Report(subject="", setting={}, machine={}, rows=(row,)).lines()
        typer.echo(line)

    report = run(
        subject, model=model, tp=tp, sustain_s=sustain_s, num_replays=num_replays, on_row=show
    )
    typer.echo(str(report.machine))
    if file is not None:
        report.save(file)
