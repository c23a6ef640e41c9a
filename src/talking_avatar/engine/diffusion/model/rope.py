"""Rotary positions in three dimensions: time, row, column.

Takes: positions. Gives: cosines and sines, and turned queries and keys.
Never: knows a cache.

A head's channels are three groups, `rope_dims` long: the first turns with t, then y, then x. In a
group of n channels, neighbors (2i, 2i + 1) are a pair that turns by position * theta^(-2i / n).
R(a) R(b) = R(a + b), so a key at t moves to t - d by a rotation of its first group alone.

Conditioning tokens stand outside the picture: two rows below it, every other column.
Registers stand in the rows from four below, at time 0 like the whole sink.

Legend: T tokens, P pairs of channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.config import AvatarDiTConfig


class Rotation(NamedTuple):
    """Angles as cosine and sine, FP32; both [T, P], or [P] for one angle a pair."""

    cos: Tensor
    sin: Tensor


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn neighboring channels of the last dimension; keeps the type.

    Args:
        x: [..., 2 * P], its leading dimensions broadcast with the rotation's.
        rotation: The angles.
    """
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = rotation
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return turned.flatten(-2).to(x.dtype)


class RopeTable:
    """A model's angles on one device. Those of rows and columns are made once."""

    def __init__(self, config: AvatarDiTConfig, device: torch.device | str = "cpu") -> None:
        self._frequencies = [
            float(theta) ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
            for dims, theta in zip(config.rope_dims, config.rope_theta, strict=True)
        ]
        self._device = torch.device(device)
        self._chunk_yx = self._places(_patch_places(config) + _conditioning_places(config))
        self._sink_yx = self._places(_patch_places(config) + _register_places(config))

    def chunk(self, position: int) -> Rotation:
        """Give the angles of one chunk's tokens at a temporal position."""
        return self._at(position, self._chunk_yx)

    def sink(self) -> Rotation:
        """Give the angles of the sink: the photo's patches, then the registers, at time 0."""
        return self._at(0, self._sink_yx)

    def shift(self, positions: int) -> Rotation:
        """Give the angles [P of time] that move a key by ``positions``, negative: back."""
        return self._cos_sin(positions * self._frequencies[0])

    def _places(self, places: list[tuple[int, int]]) -> Tensor:
        yx = torch.tensor(places, dtype=torch.float64)
        _, rows, columns = self._frequencies
        return torch.cat([yx[:, :1] * rows, yx[:, 1:] * columns], 1)

    def _at(self, position: int, yx_TP: Tensor) -> Rotation:
        t_TP = (position * self._frequencies[0]).expand(len(yx_TP), -1)
        return self._cos_sin(torch.cat([t_TP, yx_TP], 1))

    def _cos_sin(self, angles: Tensor) -> Rotation:
        return Rotation(
            angles.cos().float().to(self._device), angles.sin().float().to(self._device)
        )


def _patch_places(config: AvatarDiTConfig) -> list[tuple[int, int]]:
    rows, columns = config.grid
    return [(y, x) for y in range(rows) for x in range(columns)]


def _conditioning_places(config: AvatarDiTConfig) -> list[tuple[int, int]]:
    return [(config.grid[0] + 2, 2 * i + 2) for i in range(config.num_conditioning)]


def _register_places(config: AvatarDiTConfig) -> list[tuple[int, int]]:
    rows, columns = config.grid
    return [(rows + 4 + i // columns, i % columns) for i in range(config.num_registers)]
