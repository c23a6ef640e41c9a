"""Writing a folder of safetensors shards, tensor by tensor.

Takes: the list of tensors first, then their values, piece by piece and in any order.
Gives: shards and an index that every safetensors reader opens.
Never: holds a tensor: the library's own writer wants a whole shard in memory at once.

A shard's name ends in ``.partial`` until the folder is complete, so that an interrupted run
leaves nothing that could be taken for a checkpoint.

Source of the format: the safetensors README (eight bytes of header length, a
JSON header padded with spaces, the values one after the other).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.weights.shards import INDEX_SUFFIX
from talking_avatar.engine.diffusion.weights.source import DTYPE_NAMES
from talking_avatar.errors import CheckpointError

SHARD_BYTES = 4 * 2**30
"""A new shard begins here: what common file systems and hosts of checkpoints take gladly."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor that will be written."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    offset: int


class ShardWriter:
    """Writes what was planned, no more and no less. Use it with ``with``.

    Args:
        folder: Is made; may hold other files, but no shards.
        plan: Every tensor that will be written.
        shard_bytes: Size at which a new shard begins; one tensor is never cut.

    Raises:
        CheckpointError: ``folder`` already holds shards.
        ValueError: On leaving, if a planned tensor was not written.
    """

    def __init__(
        self, folder: Path, plan: Mapping[str, Planned], *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.safetensors")):
            raise CheckpointError(f"{folder}: already holds shards; write to a new folder")
        self._folder = folder
        self._plan = dict(plan)
        self._waiting = set(plan)
        self._places: dict[str, _Place] = {}
        groups = _grouped(plan, shard_bytes)
        self._paths: list[Path] = []
        for index, group in enumerate(groups):
            name = (
                "weights.safetensors"
                if len(groups) == 1
                else f"weights-{index + 1:05d}-of-{len(groups):05d}.safetensors"
            )
            self._paths.append(folder / name)
            self._begin(_partial(folder / name), group)

    def write(self, name: str, pieces: Iterable[Tensor]) -> None:
        """Write one tensor, given as pieces that follow each other in its first dimension.

        Raises:
            ValueError: The pieces are not the planned tensor.
        """
        planned, place = self._plan[name], self._places[name]
        written = 0
        with place.path.open("r+b") as file:
            file.seek(place.offset)
            for piece in pieces:
                if piece.dtype != planned.dtype:
                    raise ValueError(f"{name}: planned as {planned.dtype}, got {piece.dtype}")
                written += piece.nbytes
                if written > planned.nbytes:
                    raise ValueError(f"{name}: more than its {planned.nbytes:,} bytes")
                flat = piece.detach().cpu().contiguous().view(-1).view(torch.uint8)
                file.write(flat.numpy().data)
        if written != planned.nbytes:
            raise ValueError(f"{name}: {written:,} of its {planned.nbytes:,} bytes")
        self._waiting.discard(name)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None or self._waiting:
            for path in self._paths:
                _partial(path).unlink(missing_ok=True)
        if kind is not None:
            return
        if self._waiting:
            missing = ", ".join(sorted(self._waiting))
            raise ValueError(f"{self._folder}: planned but never written: {missing}")
        for path in self._paths:
            _partial(path).rename(path)
        if len(self._paths) > 1:
            self._write_index()

    def _begin(self, path: Path, names: list[str]) -> None:
        """Write the header and reserve the space behind it."""
        # Wide types first keep every value aligned whatever the sizes are.
        names = sorted(names, key=lambda name: (-self._plan[name].dtype.itemsize, name))
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name in names:
            planned = self._plan[name]
            header[name] = {
                "dtype": DTYPE_NAMES[planned.dtype],
                "shape": list(planned.shape),
                "data_offsets": [offset, offset + planned.nbytes],
            }
            self._places[name] = _Place(path, offset)
            offset += planned.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        start = 8 + len(text)
        for name in names:
            self._places[name] = _Place(path, start + self._places[name].offset)
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(start + offset)

    def _write_index(self) -> None:
        index = {
            "metadata": {"total_size": sum(planned.nbytes for planned in self._plan.values())},
            "weight_map": {
                name: place.path.name.removesuffix(".partial")
                for name, place in self._places.items()
            },
        }
        (self._folder / f"weights{INDEX_SUFFIX}").write_text(json.dumps(index, indent=1) + "\n")


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _grouped(plan: Mapping[str, Planned], shard_bytes: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    size = 0
    for name, planned in plan.items():
        if groups[-1] and size + planned.nbytes > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += planned.nbytes
    return groups
