"""What one rank must know of all ranks' memory: peers' tensors, whose addresses a kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
        num_programs: Programs of a launch; None: as many as pay. At most 32 where ranks share one
            GPU: all ranks' waiting programs must be resident together, and leave room for the
            product that a late rank still computes.
        state: int32 (3,), this rank's: epoch, programs done, error. All zeros at first.
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
    num_programs: int | None = None

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
        num_programs: int | None = None,
    ) -> PeerTables:
        """Make a rank's tables; its state starts at epoch 0, as all flags must."""
        return cls(
            rank=rank,
            owned=owned_rows(partials[rank].shape[0], rank, len(partials)),
            partials=tuple(partials),
            row_scales=tuple(row_scales),
            outputs=tuple(outputs),
            output_scales=tuple(output_scales),
            arrived=tuple(arrived),
            finished=tuple(finished),
            num_programs=num_programs,
            state=torch.zeros(3, dtype=torch.int32, device=partials[rank].device),
        )

    @property
    def world(self) -> int:
        return len(self.partials)

    @property
    def failed(self) -> bool:
        """Whether a wait ran out since the last reset of ``state``. Synchronizes the device."""
        return bool(self.state[2].item())
