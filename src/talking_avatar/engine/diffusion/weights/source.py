"""Where tensors come from: a folder of shards, or a seed. One small seam for both.

Takes: names and regions. Gives: tensors of exactly that region.
Never: knows ranks or modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from talking_avatar.errors import CheckpointError

ALL = slice(None)
"""A whole dimension."""

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
FP8 = torch.float8_e4m3fn

DTYPE_NAMES: MappingProxyType[torch.dtype, str] = MappingProxyType(
    {
        torch.float32: "F32",
        torch.bfloat16: "BF16",
        torch.float16: "F16",
        FP8: "F8_E4M3",
    }
)
"""Types that a checkpoint may hold, as safetensors names them."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor that a source has.

    Attributes:
        shape: Whole.
        dtype: As stored; safetensors' name of it where torch has none here.
        where: File that holds it, for messages.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | str
    where: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor; 0 for a type that is not read here."""
        return prod(self.shape) * self.dtype.itemsize if isinstance(self.dtype, torch.dtype) else 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What a tensor must be.

    Attributes:
        shape: Whole.
        dtypes: Types that are taken.
    """

    shape: tuple[int, ...]
    dtypes: frozenset[torch.dtype] = FLOATS


class TensorSource(Protocol):
    """Tensors by name."""

    @property
    def where(self) -> str:
        """Folder or seed, for messages."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All that it has."""
        ...

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, *, device: str = "cpu"
    ) -> Tensor:
        """Read a region; nothing outside of it is read or held.

        Args:
            name: One of `tensors`.
            rows: Of the first dimension.
            columns: Of the second; for tensors with two dimensions or more.
            device: Where the region is wanted.

        Raises:
            CheckpointError: The bytes are not there.
        """
        ...


def check(source: TensorSource, expected: Mapping[str, Expected]) -> None:
    """Compare all names, shapes and types before anything is read.

    Raises:
        CheckpointError: The first mismatch of each kind, and how many there are.
    """
    found = source.tensors
    _refuse("is missing", source.where, expected.keys() - found.keys(), lambda name: name)
    _refuse(
        "is not part of this model",
        source.where,
        found.keys() - expected.keys(),
        lambda name: f"{name} {list(found[name].shape)} in {found[name].where}",
    )
    _refuse(
        "has another shape than the model",
        source.where,
        {name for name, want in expected.items() if found[name].shape != want.shape},
        lambda name: (
            f"{name}: {list(found[name].shape)} in {found[name].where}, "
            f"{list(expected[name].shape)} in the model"
        ),
    )
    _refuse(
        "has a type that does not fit",
        source.where,
        {name for name, want in expected.items() if found[name].dtype not in want.dtypes},
        lambda name: (
            f"{name}: {dtype_name(found[name].dtype)} in {found[name].where}, wanted "
            + " or ".join(sorted(dtype_name(dtype) for dtype in expected[name].dtypes))
        ),
    )


def dtype_name(dtype: torch.dtype | str) -> str:
    """Name a type as safetensors does."""
    return dtype if isinstance(dtype, str) else DTYPE_NAMES.get(dtype, str(dtype))


def _refuse(what: str, where: str, names: Iterable[str], describe: Callable[[str], str]) -> None:
    wrong = sorted(names)
    if not wrong:
        return
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    raise CheckpointError(f"{where}: a tensor {what}: {describe(wrong[0])}{more}")
