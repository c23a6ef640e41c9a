"""Writing a checkpoint, in the precision that is wanted.

Takes: open `Weights`. Gives: a checkpoint folder, written block by block.
Never: rounds anything but the layers' matrices: embeddings, modulation, norms, output and the
codec keep the type that they came in.

Saved as FP8, a folder loads bit for bit what loading its source with FP8 matrices gives: both use
the same scale of the same whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.config import Precision
from talking_avatar.engine.diffusion.fp8 import FP8, quantize
from talking_avatar.engine.diffusion.layout import TensorSpec, tensor_specs
from talking_avatar.engine.diffusion.weights.checkpoint import (
    CODEC_FOLDER,
    CONFIG_FILE,
    DIT_FOLDER,
    SCALE_SUFFIX,
    Weights,
    write_config,
)
from talking_avatar.engine.diffusion.weights.rank_part import BLOCK_BYTES, row_blocks
from talking_avatar.engine.diffusion.weights.shard_writer import (
    SHARD_BYTES,
    Planned,
    ShardWriter,
)
from talking_avatar.engine.diffusion.weights.source import ALL, TensorInfo, TensorSource
from talking_avatar.errors import CheckpointError

_MATRICES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": FP8}


@torch.no_grad()
def save_checkpoint(
    weights: Weights,
    folder: Path,
    *,
    precision: Precision,
    device: str = "cpu",
    shard_bytes: int = SHARD_BYTES,
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """Write a checkpoint folder. config.json comes last: only a whole folder is a checkpoint.

    Args:
        weights: What to save.
        folder: Is made.
        precision: Of the layers' matrices.
        device: Where rounding happens; a GPU quantizes 57 B in seconds, a CPU in minutes.
        shard_bytes: Size at which a new shard begins.
        block_bytes: Of values in flight.

    Raises:
        CheckpointError: ``folder`` already holds one, or a tensor cannot be read, or FP8 would
            have to be turned back into floats.
    """
    if (folder / CONFIG_FILE).exists():
        raise CheckpointError(f"{folder}: already holds a checkpoint; write to a new folder")
    if weights.precision == "fp8" and precision != "fp8":
        raise CheckpointError(
            f"{weights.dit.where}: holds FP8 matrices; what their rounding lost cannot be saved "
            f"as {precision}"
        )
    specs = {spec.name: spec for spec in tensor_specs(weights.config)}
    plan = _plan_dit(weights.dit, specs, _MATRICES[precision])
    with ShardWriter(folder / DIT_FOLDER, plan, shard_bytes=shard_bytes) as writer:
        for name, spec in specs.items():
            if plan[name].dtype == FP8:
                _write_fp8(writer, weights.dit, spec, device, block_bytes)
            else:
                _copy(writer, weights.dit, name, plan[name].dtype, block_bytes)
    _save_codec(weights.codec, folder / CODEC_FOLDER, shard_bytes, block_bytes)
    write_config(folder, weights.config, precision)


def _plan_dit(
    source: TensorSource, specs: dict[str, TensorSpec], matrices: torch.dtype
) -> dict[str, Planned]:
    plan = {}
    for name, spec in specs.items():
        plan[name] = Planned(spec.shape, matrices if spec.is_matrix else _kept(source, name))
        if plan[name].dtype == FP8:
            plan[name + SCALE_SUFFIX] = Planned(spec.shape[:1], torch.float32)
    return plan


def _save_codec(source: TensorSource, folder: Path, shard_bytes: int, block_bytes: int) -> None:
    plan = {name: Planned(info.shape, _kept(source, name)) for name, info in source.tensors.items()}
    with ShardWriter(folder, plan, shard_bytes=shard_bytes) as writer:
        for name, planned in plan.items():
            _copy(writer, source, name, planned.dtype, block_bytes)


def _kept(source: TensorSource, name: str) -> torch.dtype:
    info: TensorInfo = source.tensors[name]
    if not isinstance(info.dtype, torch.dtype):
        raise CheckpointError(f"{info.where}: {name} has type {info.dtype}, not one of floats")
    return info.dtype


def _copy(
    writer: ShardWriter, source: TensorSource, name: str, dtype: torch.dtype, block_bytes: int
) -> None:
    blocks = row_blocks(source.tensors[name].shape, ALL, block_bytes)
    writer.write(name, (source.read(name, rows).to(dtype) for rows in blocks))


def _write_fp8(
    writer: ShardWriter, source: TensorSource, spec: TensorSpec, device: str, block_bytes: int
) -> None:
    if source.tensors[spec.name].dtype == FP8:
        _copy(writer, source, spec.name, FP8, block_bytes)
        _copy(writer, source, spec.name + SCALE_SUFFIX, torch.float32, block_bytes)
        return
    scales: list[Tensor] = []

    def values() -> Iterator[Tensor]:
        for rows in row_blocks(spec.shape, ALL, block_bytes):
            rounded, scale = quantize(source.read(spec.name, rows, device=device))
            scales.append(scale)
            yield rounded

    writer.write(spec.name, values())
    writer.write(spec.name + SCALE_SUFFIX, scales)
