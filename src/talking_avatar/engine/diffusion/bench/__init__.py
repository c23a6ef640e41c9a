"""Benchmarks of the diffusion engine's kernels and of one rank's step, on the GPU at hand.

Takes a named subject and a configuration; gives a report: rows of numbers with what they were
checked against, what was emulated, and the machine. Never tunes, and never changes the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

from talking_avatar.engine.diffusion.bench import (
    allreduce,
    attention,
    cache,
    linear,
    machine,
    step,
)
from talking_avatar.engine.diffusion.bench.report import Report, Row
from talking_avatar.engine.diffusion.config import named_config

__all__ = ["SUBJECTS", "Report", "Row", "Subject", "run"]

Subject: TypeAlias = Literal["step", "cache", "attention", "linear", "allreduce"]
SUBJECTS: tuple[Subject, ...] = ("linear", "attention", "cache", "allreduce", "step")


def run(
    subject: Subject,
    *,
    model: str = "avatar-57b",
    tp: int = 4,
    sustain_s: float = 60.0,
    num_replays: int = 200,
    num_layers: int | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Report:
    """Measure one subject on the current GPU.

    Args:
        subject: What to measure.
        model: A named configuration; weights are random.
        tp: Ranks the model is divided over; one rank is measured.
        sustain_s: ``step`` only: load before the first timed replay.
        num_replays: ``step`` only.
        num_layers: ``step`` only: fewer than the model's for a quick look.
        on_row: Called with each row as it is done.

    Raises:
        RuntimeError: Without a CUDA GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("this benchmark needs a CUDA GPU; torch sees none")
    config, device = named_config(model), torch.device("cuda", 0)
    torch.manual_seed(0)
    if subject == "step":
        rows = step.measure(
            config, tp, device,
            sustain_s=sustain_s, num_replays=num_replays, num_layers=num_layers,
        )  # fmt: skip
    else:
        measure = {
            "linear": linear.measure,
            "attention": attention.measure,
            "cache": cache.measure,
            "allreduce": allreduce.measure,
        }[subject]
        rows = measure(config, tp, device)
    done = []
    for row in rows:
        on_row(row)
        done.append(row)
    setting = {"model": model, "tp": tp, "tokens": config.chunk_tokens}
    return Report(subject=subject, setting=setting, machine=machine.describe(), rows=tuple(done))
