"""What one rank must know of all ranks' memory: tensors, and their addresses on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def addresses(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the tensors' addresses, int64 (n,), on ``device``."""
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=device)


def owned_rows(num_rows: int, rank: int, world: int, unit: int = 64) -> tuple[int, int]:
    """Return ``[start, stop)`` of the rows that a rank owns: whole units, as equal as can be.

    Units of 64 rows: 757 rows are 12, so each of four ranks owns 3, and none owns a third.
    """
    units = -(-num_rows // unit)
    start, stop = (units * r // world * unit for r in (rank, rank + 1))
    return min(start, num_rows), min(stop, num_rows)


@dataclass(frozen=True, slots=True, eq=False)
class PeerTables:
    """Buffers of all ranks, in rank order; every rank holds its own `PeerTables`.

    Attributes:
        rank: This rank.
        owned: Rows this rank reduces.
        partials: BF16 (M, H) each: raw partial products.
        row_scales: FP32 (M,) each: scales of the activations that made them.
        outputs: FP8 (M, H) each, written by all ranks.
        output_scales: FP32 (M,) each.
        arrived: int32 (world,) each: epoch of every rank's partial product, as told to the holder.
        finished: int32 (world,) each: epoch up to which every rank handed out its rows.
        state: int32 (4,), this rank's: epoch, programs done, error, unused. All zeros at first.
        pointers: int64 (6, world) on the device: addresses of the six above; None on a CPU.
    """

    rank: int
    owned: tuple[int, int]
    partials: tuple[Tensor, ...]
    row_scales: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    output_scales: tuple[Tensor, ...]
    arrived: tuple[Tensor, ...]
    finished: tuple[Tensor, ...]
    state: Tensor
    pointers: Tensor | None

    @classmethod
    def of(
        cls,
        rank: int,
        partials: Sequence[Tensor],
        row_scales: Sequence[Tensor],
        outputs: Sequence[Tensor],
        output_scales: Sequence[Tensor],
        arrived: Sequence[Tensor],
        finished: Sequence[Tensor],
    ) -> PeerTables:
        """Gather the addresses of all ranks' buffers onto this rank's device."""
        device = partials[rank].device
        groups = (partials, row_scales, outputs, output_scales, arrived, finished)
        pointers = None
        if device.type == "cuda":
            pointers = torch.stack([addresses(group, device) for group in groups])
        return cls(
            rank,
            owned_rows(partials[rank].shape[0], rank, len(partials)),
            *(tuple(group) for group in groups),
            state=torch.zeros(4, dtype=torch.int32, device=device),
            pointers=pointers,
        )

    @property
    def world(self) -> int:
        return len(self.partials)

    @property
    def failed(self) -> bool:
        """Whether a wait ran out since the last reset of ``state``. Synchronizes the device."""
        return bool(self.state[2].item())
