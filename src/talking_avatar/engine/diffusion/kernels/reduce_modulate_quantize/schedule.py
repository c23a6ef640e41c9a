"""The order of `reduce_modulate_quantize` across ranks, as an interpreter without a device.

Takes: an order in which ranks get their turns. Gives: nothing, or an `AssertionError` that names
the rank and the epoch of a partial product read before it was whole or after it was replaced, or
of an output row read before it came or overwritten before it was read.

Every rank repeats: product (reads its output of the epoch before, replaces its partial product),
announce, wait, reduce its rows (reads all partials, writes all outputs), announce, wait. One
instruction is one turn; a wait that is not over gives its turn away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class World:
    """Memory of all ranks, as epochs instead of numbers.

    Attributes:
        partials: Epoch of each rank's partial product; None while it is being written.
        outputs: Epoch of the rows of each owner, in each rank's output.
        arrived: Per rank, epochs that its peers announced to it: products.
        finished: Likewise: rows handed out.
    """

    num_ranks: int
    partials: list[int | None] = field(init=False)
    outputs: list[list[int]] = field(init=False)
    arrived: list[list[int]] = field(init=False)
    finished: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        ranks = range(self.num_ranks)
        self.partials = [0 for _ in ranks]
        self.outputs, self.arrived, self.finished = (
            [[0 for _ in ranks] for _ in ranks] for _ in range(3)
        )


def rank_program(world: World, rank: int, num_epochs: int) -> Iterator[None]:
    """Run one rank; every ``yield`` ends a turn.

    Raises:
        AssertionError: When it reads what is not there yet, or not there any more.
    """
    peers = range(world.num_ranks)
    for epoch in range(1, num_epochs + 1):
        for owner in peers:
            seen = world.outputs[rank][owner]
            assert seen == epoch - 1, f"rank {rank}, epoch {epoch}: rows of {owner} are of {seen}"
            yield
        world.partials[rank] = None
        yield
        world.partials[rank] = epoch
        for peer in peers:
            world.arrived[peer][rank] = epoch
            yield
        while min(world.arrived[rank]) < epoch:
            yield
        for peer in peers:
            found = world.partials[peer]
            assert found == epoch, f"rank {rank}, epoch {epoch}: partial of {peer} is of {found}"
            yield
        for peer in peers:
            world.outputs[peer][rank] = epoch
            yield
        for peer in peers:
            world.finished[peer][rank] = epoch
            yield
        while min(world.finished[rank]) < epoch:
            yield


def run_schedule(num_ranks: int, num_epochs: int, turns: Iterable[int]) -> None:
    """Give turns to ranks in the stated order, then to all in a circle until all are done.

    Raises:
        AssertionError: As `rank_program`, or when no rank can go on.
    """
    world = World(num_ranks)
    waiting = {rank: rank_program(world, rank, num_epochs) for rank in range(num_ranks)}
    for turn in turns:
        rank = turn % num_ranks
        if rank in waiting and next(waiting[rank], waiting) is waiting:
            del waiting[rank]
    for _ in range(num_epochs * num_ranks * (5 * num_ranks + 10)):
        for rank in list(waiting):
            if next(waiting[rank], waiting) is waiting:
                del waiting[rank]
    assert not waiting, f"ranks {sorted(waiting)} wait for ever"
