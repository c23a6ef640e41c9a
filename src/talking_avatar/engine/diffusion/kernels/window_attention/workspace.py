"""Partial results of attention split over keys: how many there are, and their buffers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

BLOCK_M = 128
"""Queries a program handles at once."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWorkspace:
    """Buffers between the two launches of `window_attention`.

    All blocks of keys of all (head, 128 queries) tiles are counted as one list and cut into
    ``num_programs`` equal pieces, so that every program does the same work whatever the number
    of heads. A program may end one tile and begin the next: it leaves one partial result each.

    Attributes:
        partial: BF16 (num_programs * num_pieces, 128, dim): outputs, each normalized.
        lse: FP32 (num_programs * num_pieces, 128): base-2 logarithms of the sums of exponentials.
        num_programs: Programs of the first launch.
        num_pieces: Tiles that one program can touch.
        num_parts: Programs that can share one tile.
    """

    partial: Tensor
    lse: Tensor
    num_programs: int
    num_pieces: int
    num_parts: int

    @classmethod
    def for_queries(cls, q: Tensor, num_programs: int | None = None) -> AttentionWorkspace:
        """Allocate for queries (heads, M, dim) on the device where they are."""
        heads, rows, dim = q.shape
        if num_programs is None:
            num_programs = torch.cuda.get_device_properties(q.device).multi_processor_count
        num_tiles = heads * ceil(rows / BLOCK_M)
        pieces = ceil(num_tiles / num_programs) + 1
        shape = num_programs * pieces, BLOCK_M, dim
        return cls(
            partial=torch.empty(shape, dtype=torch.bfloat16, device=q.device),
            lse=torch.empty(shape[:2], device=q.device),
            num_programs=num_programs,
            num_pieces=pieces,
            num_parts=ceil(num_programs / num_tiles) + 1,
        )
