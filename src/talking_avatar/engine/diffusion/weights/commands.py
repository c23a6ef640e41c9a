"""What can be done with a checkpoint as a whole: import, quantize, draw, look at.

Takes: folders. Gives: a folder, and a `Summary` of it.
Never: prints; the command line does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from talking_avatar.engine.diffusion.config import Precision, named_config
from talking_avatar.engine.diffusion.layout import num_parameters
from talking_avatar.engine.diffusion.weights.checkpoint import open_checkpoint, random_weights
from talking_avatar.engine.diffusion.weights.save import save_checkpoint
from talking_avatar.engine.diffusion.weights.wan_import import open_wan
from talking_avatar.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Summary:
    """What a checkpoint is.

    Attributes:
        folder: Where it is.
        model: Name of its configuration.
        precision: Of the layers' matrices.
        num_parameters: Of the DiT.
        dit_bytes, codec_bytes: Of the tensors.
    """

    folder: Path
    model: str
    precision: Precision
    num_parameters: int
    dit_bytes: int
    codec_bytes: int


def describe(folder: Path) -> Summary:
    """Check every name, shape and header of a checkpoint, and sum it up.

    Raises:
        CheckpointError: It is not one, or not whole.
    """
    with open_checkpoint(folder) as weights:
        return Summary(
            folder,
            weights.config.name,
            weights.precision,
            num_parameters(weights.config),
            sum(info.nbytes for info in weights.dit.tensors.values()),
            sum(info.nbytes for info in weights.codec.tensors.values()),
        )


def import_wan(
    source: Path, target: Path, *, precision: str = "bf16", device: str = "cpu"
) -> Summary:
    """Convert a folder of diffusers' Wan2.2-TI2V-5B.

    Raises:
        CheckpointError: It holds another model or is not whole, or ``target`` is taken.
        ValueError: No precision has that name.
    """
    with open_wan(source) as weights:
        save_checkpoint(weights, target, precision=_known(precision), device=device)
    return describe(target)


def quantize_checkpoint(source: Path, target: Path, *, device: str = "cpu") -> Summary:
    """Save the FP8 form of a checkpoint, so that opening it rounds nothing.

    Raises:
        CheckpointError: ``source`` is not whole or is FP8 already, or ``target`` is taken.
    """
    with open_checkpoint(source) as weights:
        if weights.precision == "fp8":
            raise CheckpointError(f"{source}: is in FP8 already")
        save_checkpoint(weights, target, precision="fp8", device=device)
    return describe(target)


def draw_checkpoint(
    model: str, target: Path, *, seed: int = 0, precision: str = "bf16", device: str = "cpu"
) -> Summary:
    """Save random weights of a named size, for benchmarks and for trying things out.

    Raises:
        CheckpointError: ``target`` is taken.
        ValueError: No model, or no precision, has that name.
    """
    weights = random_weights(named_config(model), seed)
    save_checkpoint(weights, target, precision=_known(precision), device=device)
    return describe(target)


def _known(precision: str) -> Precision:
    for known in get_args(Precision):
        if precision == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"precision {precision}: choose {', '.join(get_args(Precision))}")
