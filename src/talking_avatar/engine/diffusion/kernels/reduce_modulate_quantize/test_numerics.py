from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ..formats import FP8, dequantize
from ..modulate_norm_quantize.reference import normalize_modulate
from ..numerics import TOLERANCE, calc_diff
from . import Modulation, PeerTables, reduce_modulate_quantize
from .schedule import World, run_schedule
from .tables import owned_rows


@given(st.integers(1, 4096), st.integers(1, 8))
def test_every_row_has_one_owner_and_shares_are_even(rows: int, world: int) -> None:
    owned = [owned_rows(rows, rank, world) for rank in range(world)]
    assert [r for start, stop in owned for r in range(start, stop)] == list(range(rows))
    assert max(stop - start for start, stop in owned) <= 64 * -(-rows // (64 * world))


def test_757_rows_are_three_units_of_64_for_each_of_four() -> None:
    assert [owned_rows(757, r, 4) for r in range(4)] == [
        (0, 192),
        (192, 384),
        (384, 576),
        (576, 757),
    ]


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 4), max_size=400))
def test_no_order_of_ranks_loses_or_reuses_a_row(
    num_ranks: int, num_epochs: int, turns: list[int]
) -> None:
    run_schedule(num_ranks, num_epochs, turns)


@pytest.mark.parametrize("flags", ["arrived", "finished"])
def test_the_interpreter_finds_a_missing_wait(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = World.__post_init__

    def already_there(world: World) -> None:
        whole(world)
        setattr(world, flags, [[9] * world.num_ranks for _ in range(world.num_ranks)])

    monkeypatch.setattr(World, "__post_init__", already_there)
    orders = random.Random(0)

    def search() -> None:
        for _ in range(200):
            run_schedule(3, 3, [orders.randrange(3) for _ in range(200)])

    with pytest.raises(AssertionError, match=r"epoch \d: (partial|rows) of"):
        search()


def check(rows: int, width: int, world: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    partials = [(random(rows, width) * 1e5).bfloat16() for _ in range(world)]
    row_scales = [random(rows).abs() * 1e-5 for _ in range(world)]
    outputs = [torch.zeros(rows, width, dtype=FP8, device=device) for _ in range(world)]
    scales = [torch.zeros(rows, device=device) for _ in range(world)]
    # One rank at a time: its peers' flags stand as if they had come and gone.
    flags = [
        torch.full((world,), 1 << 30, dtype=torch.int32, device=device) for _ in range(2 * world)
    ]
    modulation = Modulation(random(width), random(width) * 0.1, random(width) * 0.1)
    kept = random(rows, width)
    for rank in range(world):
        tables = PeerTables.of(
            rank, partials, row_scales, outputs, scales, flags[:world], flags[world:]
        )
        residual = kept[slice(*tables.owned)].clone()
        if len(residual) == 0:
            continue
        reduce_modulate_quantize(tables, residual, modulation)
        assert not tables.failed
    total = sum(p.double() * s.double()[:, None] for p, s in zip(partials, row_scales, strict=True))
    expected = normalize_modulate(
        kept.double() + modulation.factor.double() * total,
        modulation.shift.double(),
        modulation.scale.double(),
        1e-6,
    )
    for output, scale in zip(outputs, scales, strict=True):
        assert torch.equal(output.view(torch.uint8), outputs[0].view(torch.uint8))
        assert calc_diff(dequantize(output, scale), expected) <= TOLERANCE[FP8]


@pytest.mark.parametrize("world", [1, 3, 4])
def test_reference_hands_equal_rows_to_all(world: int) -> None:
    check(200, 48, world, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_kernel_hands_equal_rows_to_all(world: int, cuda: torch.device) -> None:
    check(757, 8192, world, cuda)


@pytest.mark.gpu
def test_a_rank_that_never_comes_is_an_error_not_a_hang(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from . import kernel

    monkeypatch.setattr(kernel, "MAX_SPINS", 1000)
    partials = [torch.zeros(64, 64, dtype=torch.bfloat16, device=cuda) for _ in range(2)]
    ones = [torch.ones(64, device=cuda) for _ in range(4)]
    outputs = [torch.zeros(64, 64, dtype=FP8, device=cuda) for _ in range(2)]
    flags = [torch.zeros(2, dtype=torch.int32, device=cuda) for _ in range(4)]
    tables = PeerTables.of(1, partials, ones[:2], outputs, ones[2:], flags[:2], flags[2:])
    vector = torch.ones(64, device=cuda)
    reduce_modulate_quantize(
        tables, torch.zeros(64, 64, device=cuda), Modulation(vector, vector, vector)
    )
    assert tables.failed


@pytest.mark.gpu
def test_four_virtual_ranks_agree_bit_by_bit_with_late_ones(cuda: torch.device) -> None:
    from talking_avatar.engine.diffusion.bench import allreduce

    row = allreduce.measure_product("down", 757, 8192, 7680, 4, cuda)
    assert row.numbers["bitwise_equal"] == "True"
    assert row.numbers["wait_ran_out"] == "False"
    assert float(row.numbers["calc_diff"]) <= TOLERANCE[FP8]
