"""Random weights out of a seed, for benchmarks and tests.

Takes: a seed, and the names and shapes of a model.
Gives: a `TensorSource` whose every value is a function of (seed, name, index) alone: the same on
every device, for any number of ranks and any order of reading. A region costs only itself.
Never: pretends to be trained.

Values are uniform, not normal: an integer times a power of two is the same to the last bit on
every device, the logarithm and cosine of a normal draw are not. The deviation of a matrix is
1 / sqrt(inputs), which keeps activations of a deep model near one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import prod, sqrt
from types import MappingProxyType

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.weights.source import ALL, TensorInfo

_MASK = 0xFFFF_FFFF
_MIX = 0x045D_9F3B
"""Odd, below 2^31: a 32-bit value times it stays within a signed 64-bit integer."""
_NORM_SPREAD = 0.1
"""Norm weights are 1 +- this: not exactly 1, so that a test notices a forgotten one."""
_BIAS_SPREAD = 0.02


class RandomSource:
    """A `TensorSource` out of nothing.

    Args:
        shapes: Names and whole shapes; each under 2^32 values.
        seed: Another seed, another model.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
        too_large = [name for name, shape in shapes.items() if prod(shape) > _MASK]
        if too_large:
            raise ValueError(f"{too_large[0]} has more than 2^32 values")
        self._seed = seed
        self._tensors = {
            name: TensorInfo(tuple(shape), torch.float32, self.where)
            for name, shape in shapes.items()
        }

    @property
    def where(self) -> str:
        return f"random weights, seed {self._seed}"

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return MappingProxyType(self._tensors)

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, *, device: str = "cpu"
    ) -> Tensor:
        shape = self._tensors[name].shape
        index = _flat_index(shape, rows, columns, device)
        draw = _uniform(index, *_keys(self._seed, name))
        center, spread = _center_and_spread(name, shape)
        return draw.mul_(spread).add_(center)


def _flat_index(shape: tuple[int, ...], rows: slice, columns: slice, device: str) -> Tensor:
    """Number the values of a region as they are numbered in the whole tensor."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    regions = (rows, columns, *(ALL,) * len(shape))
    for dimension, (size, region) in enumerate(zip(shape, regions, strict=False)):
        steps = torch.arange(*region.indices(size), dtype=torch.int64, device=device)
        stride = prod(shape[dimension + 1 :])
        index = index.unsqueeze(-1) + steps * stride
    return index


def _keys(seed: int, name: str) -> tuple[int, int]:
    digest = blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _uniform(index: Tensor, first_key: int, second_key: int) -> Tensor:
    """Hash integers to FP32 in [-1, 1), exact multiples of 2^-23."""
    value = index.add_(first_key).bitwise_and_(_MASK)
    for key in (second_key, 0):
        value = value.bitwise_xor_(value >> 16).mul_(_MIX).bitwise_and_(_MASK)
        value = value.bitwise_xor_(value >> 15).bitwise_xor_(key).mul_(_MIX).bitwise_and_(_MASK)
    value.bitwise_xor_(value >> 16)
    return (value >> 8).to(torch.float32).mul_(2.0**-23).sub_(1.0)


def _center_and_spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Choose the middle and half width of a tensor's values by what it is."""
    *_, owner, kind = ("", *name.split("."))
    if kind == "bias":
        return 0.0, _BIAS_SPREAD
    if "norm" in owner:
        return 1.0, _NORM_SPREAD
    return 0.0, sqrt(3 / prod(shape[1:]))
