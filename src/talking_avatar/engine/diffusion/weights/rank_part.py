"""One rank's parameters out of a source.

Takes: the rank's tensors as its modules allocated them, `Weights`, and which rank of how many.
Gives: the tensors filled: divided, converted or quantized, zeros where the division adds some.
Never: holds more of a source than one block of rows, and what that block is rounded to.

Nothing is allocated beside the blocks: the peak of loading is the rank's own part plus a few
`BLOCK_BYTES`, whatever the model's size. A matrix that is quantized on the way is read in whole
rows even if its columns are divided, because a row's scale must be the same for any number of
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.fp8 import FP8, quantize
from talking_avatar.engine.diffusion.layout import TensorSpec, tensor_specs
from talking_avatar.engine.diffusion.weights.checkpoint import SCALE_SUFFIX, Weights
from talking_avatar.engine.diffusion.weights.source import ALL, TensorSource
from talking_avatar.errors import CheckpointError

BLOCK_BYTES = 32 * 2**20
"""Of a source's values in flight: large enough to stream, small beside a model worth dividing."""


class Region(NamedTuple):
    """What of a whole tensor one rank holds; empty where it holds only added zeros."""

    rows: slice = ALL
    columns: slice = ALL


@torch.no_grad()
def fill_rank(
    targets: Mapping[str, Tensor],
    weights: Weights,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """Fill one rank's tensors. Their types and devices decide what the values become.

    Args:
        targets: By the module's names, shaped as `TensorSpec.parameter_shape` says. One in FP8
            has a companion ``NAME_scale``, FP32, one a row.
        weights: Where from.
        rank: 0 to ``num_ranks - 1``.
        num_ranks: Tensor-parallel ranks.
        block_bytes: Of the source's values in flight.

    Raises:
        CheckpointError: A tensor cannot be read, holds NaN or infinity, or is stored in FP8 and
            wanted in another type.
        ValueError: ``targets`` are not those of this model and number of ranks.
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank {rank} of {num_ranks}: ranks are numbered from 0")
    specs = list(tensor_specs(weights.config, num_ranks))
    _check_targets(targets, specs, num_ranks)
    for spec in specs:
        part = _part_of(targets[spec.parameter], spec, num_ranks)
        region = region_of(spec, rank, num_ranks)
        if part.dtype == FP8:
            scales = _part_of(targets[spec.parameter + SCALE_SUFFIX], spec, num_ranks)
            _fill_fp8(part, scales, weights.dit, spec, region, block_bytes)
        else:
            _fill(part, weights.dit, spec.name, region, block_bytes)


def region_of(spec: TensorSpec, rank: int, num_ranks: int) -> Region:
    """Find what of a whole tensor one rank holds."""
    if spec.split is None:
        return Region()
    length = spec.padded // num_ranks
    size = spec.shape[0 if spec.split == "rows" else 1]
    span = slice(min(rank * length, size), min((rank + 1) * length, size))
    return Region(rows=span) if spec.split == "rows" else Region(columns=span)


def _part_of(target: Tensor, spec: TensorSpec, num_ranks: int) -> Tensor:
    """Find the rows of a parameter that belong to one of its tensors."""
    rows = spec.part_shape(num_ranks)[0]
    return target.narrow(0, spec.part * rows, rows)


def _fill(part: Tensor, source: TensorSource, name: str, region: Region, block_bytes: int) -> None:
    info = source.tensors[name]
    if info.dtype == FP8:
        raise CheckpointError(
            f"{info.where}: {name} is stored in FP8, so {part.dtype} cannot be had from it; open "
            'it with precision="fp8", or open the checkpoint that it was made from'
        )
    _clear(part)
    copy_region(part, source, name, region, block_bytes)


def _fill_fp8(
    part: Tensor,
    scales: Tensor,
    source: TensorSource,
    spec: TensorSpec,
    region: Region,
    block_bytes: int,
) -> None:
    _clear(part)
    _clear(scales)
    if source.tensors[spec.name].dtype == FP8:
        copy_region(part, source, spec.name, region, block_bytes)
        copy_region(scales, source, spec.name + SCALE_SUFFIX, Region(rows=region.rows), block_bytes)
        return
    first = region.rows.start or 0
    device = str(part.device)
    for rows in row_blocks(source.tensors[spec.name].shape, region.rows, block_bytes):
        values, scale = quantize(source.read(spec.name, rows, device=device))
        _place(part, rows.start - first, values[:, region.columns])
        _place(scales, rows.start - first, _finite(scale, source, spec.name))


def copy_region(
    part: Tensor, source: TensorSource, name: str, region: Region, block_bytes: int
) -> None:
    """Read a region into a tensor, block by block, converting on the way."""
    first = region.rows.start or 0
    device = str(part.device)
    for rows in row_blocks(source.tensors[name].shape, region.rows, block_bytes):
        _place(
            part,
            rows.start - first,
            _finite(source.read(name, rows, region.columns, device=device), source, name),
        )


def row_blocks(shape: tuple[int, ...], rows: slice, block_bytes: int) -> Iterator[slice]:
    """Cut rows of a tensor into blocks of at most that many bytes in FP32, or of one row."""
    first, last, _ = rows.indices(shape[0])
    step = max(1, block_bytes // (4 * max(1, prod(shape[1:]))))
    for start in range(first, last, step):
        yield slice(start, min(start + step, last))


def _place(part: Tensor, at: int, block: Tensor) -> None:
    """Put a block into a rank's part; what no block covers are added zeros."""
    rows = part[at : at + len(block)]
    (rows if block.ndim == 1 else rows[:, : block.shape[1]]).copy_(block)


def _finite(block: Tensor, source: TensorSource, name: str) -> Tensor:
    """Give a block back, unless it would make every picture black."""
    if block.dtype == FP8:  # E4M3 has no infinity, and no comparisons on a CPU
        is_finite = not bool((block.view(torch.uint8) & 0x7F == 0x7F).any())
    else:
        is_finite = bool(block.isfinite().all())
    if not is_finite:
        raise CheckpointError(f"{source.tensors[name].where}: {name} holds NaN or infinity")
    return block


def _clear(part: Tensor) -> None:
    part.view(torch.uint8).zero_()  # by bytes: FP8 has no fill everywhere


def _check_targets(targets: Mapping[str, Tensor], specs: list[TensorSpec], num_ranks: int) -> None:
    wanted = {spec.parameter: spec.parameter_shape(num_ranks) for spec in specs}
    for name, shape in list(wanted.items()):
        if name in targets and targets[name].dtype == FP8:
            wanted[name + SCALE_SUFFIX] = shape[:1]
    if wanted.keys() != targets.keys():
        odd = sorted(wanted.keys() ^ targets.keys())
        raise ValueError(f"model and layout disagree on {len(odd)} names, the first is {odd[0]}")
    for name, shape in wanted.items():
        if tuple(targets[name].shape) != shape:
            raise ValueError(
                f"{name} is {list(targets[name].shape)}, but {list(shape)} on one of "
                f"{num_ranks} ranks"
            )
