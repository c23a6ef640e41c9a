"""The seam between ranks: one collective, a sum in FP32 in a fixed order.

Takes: a partial result of every rank. Gives: their sum, the same bits on every rank and in every
run. Never: is used for anything else; a rank that needs no sum never meets the others.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.ranks.rendezvous import Rendezvous


class Comm(Protocol):
    """One rank's view of the others."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def all_reduce(self, partial: Tensor, what: str) -> Tensor:
        """Add up the ranks' partial results, in FP32, in the order of ranks.

        Args:
            partial: Of the same shape on every rank. Must not be written to afterwards.
            what: Names this collective in errors; the same on every rank.

        Returns:
            The sum in FP32 on this rank's device; equal bits on every rank.

        Raises:
            RankStopped: Another rank failed, or skipped this.
        """
        ...


class LocalComm:
    """A single rank: nothing to add."""

    rank = 0
    world_size = 1

    def all_reduce(self, partial: Tensor, what: str) -> Tensor:
        """Give ``partial`` in FP32."""
        del what
        return partial.float()


class ThreadComm:
    """Ranks that are threads of this process, on any devices.

    Every rank adds all partials itself: no rank waits for another's sum, and the order is fixed.
    """

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        """Make a rank's comm.

        Args:
            rank: Its number.
            rendezvous: Where this piece of work meets; `group` sets a new one for the next.
        """
        self.rank = rank
        self.world_size = rendezvous.world_size
        self.rendezvous = rendezvous

    def all_reduce(self, partial: Tensor, what: str) -> Tensor:
        """See `Comm.all_reduce`."""
        label = f"{what} {tuple(partial.shape)}"
        _finish(partial)  # others read it from their own streams
        partials: list[Tensor] = self.rendezvous.exchange(self.rank, label, partial)
        first, *rest = partials
        total = first.to(partial.device, torch.float32, copy=True)
        for other in rest:
            total += other.to(partial.device, torch.float32)
        _finish(total)  # only now may the others' partials be freed and used anew
        return total


def _finish(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
