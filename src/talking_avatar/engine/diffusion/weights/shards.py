"""Reading a folder of safetensors shards, region by region.

Takes: a folder, with an index where there are several shards.
Gives: a `TensorSource` over all of them.
Never: opens a pickle, or maps more of a file into a tensor than the region that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from talking_avatar.engine.diffusion.weights.source import ALL, DTYPE_NAMES, TensorInfo
from talking_avatar.errors import CheckpointError

INDEX_SUFFIX = ".safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class ShardFolder:
    """A `TensorSource` over the shards of a folder. Open it with ``with``.

    Opening reads every header and compares them with the index, so that a broken or incomplete
    download is found before the first tensor moves.

    Args:
        folder: Holds ``*.safetensors``, and ``*.safetensors.index.json`` if there are several.

    Raises:
        CheckpointError: There is nothing to read, or a file is not what it claims to be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._tensors: dict[str, TensorInfo] = {}
        self._stack = ExitStack()
        try:
            self._open_all()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> ShardFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._files.clear()

    @property
    def where(self) -> str:
        return str(self._folder)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return MappingProxyType(self._tensors)

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, *, device: str = "cpu"
    ) -> Tensor:
        info = self._tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.where}: no tensor is called {name}")
        if not isinstance(info.dtype, torch.dtype):
            raise CheckpointError(f"{info.where}: {name} has type {info.dtype}, not one of floats")
        file = self._files.get(info.where)
        if file is None:
            raise ValueError(f"{self.where} is closed: read inside its `with` block")
        try:
            region = file.get_slice(name)
            part: Tensor = region[rows] if columns == ALL else region[rows, columns]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{info.where}: cannot read {name} {list(info.shape)}: {error}"
            ) from error
        return part.to(device)

    def _open_all(self) -> None:
        index = self._read_index()
        paths = sorted(set(index.values())) if index is not None else self._shards()
        for path in paths:
            self._open(path)
        if index is not None:
            self._compare_with(index)

    def _open(self, path: Path) -> None:
        if not path.is_file():
            raise CheckpointError(f"{path}: the index names this shard, but it is not there")
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            size = path.stat().st_size
            raise CheckpointError(
                f"{path}: not a whole safetensors file ({size:,} bytes): {error}; fetch it again"
            ) from error
        self._files[str(path)] = file
        for name in sorted(file.keys()):
            if name in self._tensors:
                raise CheckpointError(
                    f"{path}: {name} is also in {self._tensors[name].where}; without an index "
                    "there is no telling which one counts"
                )
            region = file.get_slice(name)
            dtype = region.get_dtype()
            self._tensors[name] = TensorInfo(
                tuple(region.get_shape()), _DTYPES.get(dtype, dtype), str(path)
            )

    def _shards(self) -> list[Path]:
        if not self._folder.is_dir():
            raise CheckpointError(f"{self._folder}: no such folder")
        shards = sorted(self._folder.glob("*.safetensors"))
        if shards:
            return shards
        pickles = sorted(path for path in self._folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            raise CheckpointError(
                f"{pickles[0]}: a pickle can run code when it is opened, so it is never read; "
                "convert it to safetensors where you trust it"
            )
        raise CheckpointError(f"{self._folder}: no *.safetensors file in it")

    def _read_index(self) -> dict[str, Path] | None:
        indexes = sorted(self._folder.glob(f"*{INDEX_SUFFIX}"))
        if not indexes:
            return None
        if len(indexes) > 1:
            raise CheckpointError(f"{self._folder}: {len(indexes)} indexes, there can be only one")
        try:
            names: dict[str, str] = json.loads(indexes[0].read_text())["weight_map"]
            files = {name: Path(file) for name, file in names.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{indexes[0]}: not an index of shards: {error!r}") from error
        outside = [file for file in files.values() if len(file.parts) != 1]
        if outside:
            raise CheckpointError(f"{indexes[0]}: shard {outside[0]} is not beside the index")
        return {name: self._folder / file for name, file in files.items()}

    def _compare_with(self, index: dict[str, Path]) -> None:
        for name, path in index.items():
            if name not in self._tensors:
                raise CheckpointError(f"{path}: has no {name}, which the index puts there")
            if self._tensors[name].where != str(path):
                raise CheckpointError(
                    f"{self._tensors[name].where}: has {name}, which the index puts into {path}"
                )
        unlisted = sorted(self._tensors.keys() - index.keys())
        if unlisted:
            raise CheckpointError(
                f"{self._tensors[unlisted[0]].where}: has {unlisted[0]}, which the index does not "
                f"name (and {len(unlisted) - 1} more)"
            )
