"""The ring's integers against a record that keeps everything and forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talking_avatar.engine.diffusion.cache.ring import ChunkSlots, Ring, RingShape, SlotRange
from talking_avatar.engine.diffusion.config import named_config

SMALL = RingShape(num_sink=5, chunk_tokens=3, window=4, spare=2, reset_interval=7)


@dataclass
class Record:
    """What a cache would hold: per slot, which chunk's token it is and where it was turned to."""

    shape: RingShape
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    resets: list[int] = field(default_factory=list)

    def apply(self, step: ChunkSlots) -> None:
        if step.lowered:
            self.resets.append(step.chunk)
            self.positions = {c: p - step.lowered for c, p in self.positions.items()}
        self.positions[step.chunk] = step.position
        for token, slot in enumerate(range(*step.write)):
            self.slots[slot] = (step.chunk, token)

    def forget_after(self, chunk: int) -> None:
        self.positions = {c: p for c, p in self.positions.items() if c <= chunk}

    def attended(self, step: ChunkSlots) -> list[tuple[int, int]]:
        return sorted(self.slots[slot] for part in step.attended for slot in range(*part))


def check(record: Record, ring: Ring, step: ChunkSlots) -> None:
    shape = record.shape
    window = range(max(0, step.chunk - shape.window + 1), step.chunk + 1)
    assert record.attended(step) == [(c, t) for c in window for t in range(shape.chunk_tokens)]
    assert 1 <= len(step.attended) <= 2
    assert all(shape.num_sink <= a < b <= shape.stored for a, b in step.attended)
    assert step.write.num_slots == shape.chunk_tokens
    assert step.position <= shape.max_position
    for chunk in window:
        assert ring.position(chunk) == record.positions[chunk]
        assert record.positions[chunk] == step.position - (step.chunk - chunk)


def test_ten_thousand_chunks_of_the_large_model() -> None:
    shape = RingShape.of(named_config("avatar-57b"))
    ring, positions, resets, place_of = Ring.empty(shape), dict[int, int](), [], {}
    for chunk in range(10_000):
        ring, step = ring.advance()
        if step.lowered:
            resets.append(chunk)
            positions = {c: p - step.lowered for c, p in positions.items()}
        positions[chunk] = step.position
        positions.pop(chunk - shape.num_places, None)
        place_of[step.write.start] = chunk
        seen = {place_of[s] for a, b in step.attended for s in range(a, b, shape.chunk_tokens)}
        assert seen == set(range(max(0, chunk - shape.window + 1), chunk + 1))
        assert sum(part.num_slots for part in step.attended) == len(seen) * shape.chunk_tokens
        assert {c: ring.position(c) for c in positions} == positions
    assert resets == list(range(42, 10_000, 42)), "one reset every 42 steps, the first included"


def test_sizes_of_the_large_model() -> None:
    shape = RingShape.of(named_config("avatar-57b"))
    assert (shape.attended, shape.stored, shape.max_position) == (5_788, 7_302, 42)
    assert RingShape.of(named_config("avatar-57b"), rewind_chunks=6).spare == 5


@settings(max_examples=300, deadline=None)
@given(
    window=st.integers(1, 6),
    spare=st.integers(0, 5),
    interval=st.integers(1, 12),
    first=st.integers(0, 9),
    steps=st.lists(st.one_of(st.none(), st.integers(1, 8)), min_size=1, max_size=80),
)
def test_any_chunks_and_rewinds(
    window: int, spare: int, interval: int, first: int, steps: list[int | None]
) -> None:
    """None adds a chunk; a number goes that far back, where the ring promises that it can."""
    shape = RingShape(
        num_sink=4, chunk_tokens=2, window=window, spare=spare,
        reset_interval=interval, first_position=first,
    )  # fmt: skip
    ring, record = Ring.empty(shape), Record(shape)
    newest = -1
    for back in steps:
        if back is None:
            ring, step = ring.advance()
            record.apply(step)
            check(record, ring, step)
            newest = max(newest, step.chunk)
            continue
        target = ring.next_chunk - 1 - back
        if target < -1 or (target >= 0 and newest - target > shape.rewind_chunks):
            continue
        before = dict(record.positions)
        ring = ring.rewind(target)
        record.forget_after(target)
        if target >= 0:
            assert ring.last_position == before[target], "a rewind never undoes a reset"
        else:
            newest = -1
            record = Record(shape)


def test_rewind_before_a_reset_keeps_it() -> None:
    ring = Ring.empty(SMALL)
    for _ in range(7):
        ring, step = ring.advance()
    assert (step.position, step.lowered) == (7, 0)
    ring, step = ring.advance()
    assert (step.position, step.lowered) == (1, 7)
    ring = ring.rewind(5)
    assert ring.last_position == -1
    ring, step = ring.advance()
    assert (step.chunk, step.position, step.lowered) == (6, 0, 0)


@pytest.mark.parametrize("to_chunk", [-2, 10, 11])
def test_rewind_refuses_what_was_never_written(to_chunk: int) -> None:
    ring = Ring.empty(SMALL)
    for _ in range(10):
        ring, _ = ring.advance()
    with pytest.raises(ValueError, match="10 chunks were written"):
        ring.rewind(to_chunk)


def test_rewind_refuses_when_the_past_is_gone() -> None:
    ring = Ring.empty(SMALL)
    for _ in range(20):
        ring, _ = ring.advance()
    assert ring.rewind(16).next_chunk == 17
    with pytest.raises(ValueError, match="must see 3 chunks before it, and the oldest stored"):
        ring.rewind(15)
    once = ring.rewind(16)
    with pytest.raises(ValueError, match="oldest stored is 14"):
        once.rewind(15)


def test_attended_ranges_wrap() -> None:
    ring = Ring.empty(SMALL)
    for _ in range(8):
        ring, step = ring.advance()
    assert step.attended == (SlotRange(5, 11), SlotRange(17, 23))
    assert step.write == SlotRange(8, 11)
