"""Partial results of attention split over keys: how many there are, and their buffers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the first launch cuts its work.

    Attributes:
        block_m: Queries a program handles at once.
        block_n: Keys of one block.
        is_hopper: Whether the kernel for Hopper runs, or the portable one.
    """

    block_m: int
    block_n: int
    is_hopper: bool


HOPPER = Tiling(128, 128, True)
PORTABLE = Tiling(128, 128, False)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWorkspace:
    """Buffers between the two launches of `window_attention`.

    All blocks of keys of all (head, block of queries) tiles are counted as one list and cut into
    ``num_programs`` equal pieces, so that every program does the same work whatever the number
    of heads. A program may end one tile and begin the next: it leaves one partial result each.

    Attributes:
        tiling: Of the first launch.
        partial: BF16 (num_programs * num_pieces, block_m, dim): outputs, each normalized.
        lse: FP32 (num_programs * num_pieces, block_m): base-2 logarithms of the sums
            of exponentials.
        num_programs: Programs of the first launch.
        num_pieces: Tiles that one program can touch.
        num_parts: Programs that can share one tile.
    """

    tiling: Tiling
    partial: Tensor
    lse: Tensor
    num_programs: int
    num_pieces: int
    num_parts: int

    @classmethod
    def for_queries(cls, q: Tensor, tiling: Tiling | None = None) -> AttentionWorkspace:
        """Allocate for queries (heads, M, dim) on the GPU where they are."""
        heads, rows, dim = q.shape
        properties = torch.cuda.get_device_properties(q.device)
        if tiling is None:
            tiling = HOPPER if properties.major == 9 else PORTABLE
        num_programs = properties.multi_processor_count
        num_tiles = heads * ceil(rows / tiling.block_m)
        pieces = ceil(num_tiles / num_programs) + 1
        shape = num_programs * pieces, tiling.block_m, dim
        return cls(
            tiling=tiling,
            partial=torch.empty(shape, dtype=torch.bfloat16, device=q.device),
            lse=torch.empty(shape[:2], device=q.device),
            num_programs=num_programs,
            num_pieces=pieces,
            num_parts=ceil(num_programs / num_tiles) + 1,
        )
