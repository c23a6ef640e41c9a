"""Where every chunk lives in the cache and which temporal position it has. Integers only.

Takes: "one more chunk" and "go back to chunk k". Gives: a `ChunkSlots` per chunk: slots to write,
slots to attend, and by how much stored positions drop first. Never: touches a tensor.

The cache has ``stored`` slots: the sink, then ``window + spare`` places of one chunk each, used
round and round. Chunk k lives in place ``k % num_places``:

    | sink (position 0, written once) | place 0 | place 1 | ... | place num_places - 1 |

Positions. The first chunk is at ``first_position``, each next one at the last kept one's + 1.
When that would pass ``max_position``, it and every stored chunk's position drop by
``reset_interval`` first. ``max_position = first_position + reset_interval - 1``, so that the first
reset comes after ``reset_interval`` chunks, like every later one. A rewind forgets chunks but
never raises positions again, so stored positions are always consecutive, and three integers are
the whole state.

What is attended: the sink, then the window's places, which are at most two ranges of slots.
Their order is that of the slots, not of time: softmax does not care. Spare places are only kept,
for a rewind to find its past.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from talking_avatar.engine.diffusion.config import AvatarDiTConfig


class SlotRange(NamedTuple):
    """Slots ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    @property
    def num_slots(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class RingShape:
    """Sizes that never change while a stream lives. See `AvatarDiTConfig` for their meaning."""

    num_sink: int
    chunk_tokens: int
    window: int
    spare: int
    reset_interval: int
    first_position: int = 1

    @classmethod
    def of(cls, config: AvatarDiTConfig, *, rewind_chunks: int = 0) -> RingShape:
        """Take the sizes of a model.

        Args:
            config: The model.
            rewind_chunks: How far a rewind must reach; more spare places are added if needed.
        """
        return cls(
            num_sink=config.num_sink,
            chunk_tokens=config.chunk_tokens,
            window=config.window,
            spare=max(config.spare, rewind_chunks - 1),
            reset_interval=config.reset_interval,
            first_position=config.first_position,
        )

    @property
    def num_places(self) -> int:
        """Chunks that are stored."""
        return self.window + self.spare

    @property
    def stored(self) -> int:
        """Slots in all."""
        return self.num_sink + self.num_places * self.chunk_tokens

    @property
    def attended(self) -> int:
        """Slots that a query sees once the window is full."""
        return self.num_sink + self.window * self.chunk_tokens

    @property
    def max_position(self) -> int:
        return self.first_position + self.reset_interval - 1

    @property
    def rewind_chunks(self) -> int:
        """How many chunks a rewind can take back with the window still whole."""
        return self.spare + 1

    @property
    def sink(self) -> SlotRange:
        return SlotRange(0, self.num_sink)

    @property
    def ring(self) -> SlotRange:
        """All places: what a reset rotates."""
        return SlotRange(self.num_sink, self.stored)

    def place(self, chunk: int) -> SlotRange:
        """Give the slots of a chunk."""
        start = self.num_sink + chunk % self.num_places * self.chunk_tokens
        return SlotRange(start, start + self.chunk_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSlots:
    """Everything the tensors need to know of one chunk; the same for all its passes.

    Attributes:
        chunk: Its index.
        position: Its temporal position.
        lowered: Before its first pass, the stored ring's positions drop by this; 0: no reset.
        write: Where its keys and values go.
        attended: The ring's ranges that it sees, itself included; one or two, by rising slot.
    """

    chunk: int
    position: int
    lowered: int
    write: SlotRange
    attended: tuple[SlotRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What has been written so far; a value: every step gives a new one.

    Attributes:
        shape: Its sizes.
        next_chunk: Index of the chunk that comes next.
        last_position: Position of chunk ``next_chunk - 1``, after all resets.
        oldest: The oldest chunk still stored whole, with what follows it.
    """

    shape: RingShape
    next_chunk: int = 0
    last_position: int
    oldest: int = 0

    @classmethod
    def empty(cls, shape: RingShape) -> Ring:
        """Begin: nothing but the sink."""
        return cls(shape=shape, last_position=shape.first_position - 1)

    def position(self, chunk: int) -> int:
        """Give the position of a past chunk: where its stored keys are turned now."""
        assert 0 <= chunk < self.next_chunk, (chunk, self.next_chunk)
        return self.last_position - (self.next_chunk - 1 - chunk)

    def advance(self) -> tuple[Ring, ChunkSlots]:
        """Give the next chunk its place and position."""
        shape, chunk = self.shape, self.next_chunk
        position = self.last_position + 1
        lowered = shape.reset_interval if position > shape.max_position else 0
        slots = ChunkSlots(
            chunk=chunk,
            position=position - lowered,
            lowered=lowered,
            write=shape.place(chunk),
            attended=_ranges(shape, max(0, chunk - shape.window + 1), chunk),
        )
        after = replace(
            self,
            next_chunk=chunk + 1,
            last_position=slots.position,
            oldest=max(self.oldest, chunk + 1 - shape.num_places),
        )
        return after, slots

    def rewind(self, to_chunk: int) -> Ring:
        """Forget every chunk after ``to_chunk``; -1 forgets all.

        Raises:
            ValueError: ``to_chunk`` was never written, or what its successor must attend is gone.
        """
        if not -1 <= to_chunk < self.next_chunk:
            raise ValueError(
                f"cannot rewind to chunk {to_chunk}: {self.next_chunk} chunks were written"
            )
        if to_chunk == -1:
            return Ring.empty(self.shape)
        if max(0, to_chunk + 2 - self.shape.window) < self.oldest:
            raise ValueError(
                f"cannot rewind to chunk {to_chunk}: its successor must see "
                f"{self.shape.window - 1} chunks before it, and the oldest stored is {self.oldest}"
            )
        return replace(self, next_chunk=to_chunk + 1, last_position=self.position(to_chunk))


def _ranges(shape: RingShape, first: int, last: int) -> tuple[SlotRange, ...]:
    """Give the places of consecutive chunks as ranges of slots, by rising slot."""
    start, stop = shape.place(first).start, shape.place(last).stop
    if start < stop:
        return (SlotRange(start, stop),)
    return (SlotRange(shape.num_sink, stop), SlotRange(start, shape.stored))
