from __future__ import annotations

import pytest
import torch

from ..formats import FP8, dequantize, quantize
from ..numerics import TOLERANCE, calc_diff
from ..write_qkv.reference import rotate
from . import rotate_slots

RANGES = [[10, 43], [70, 117]]


def check(device: torch.device, *, is_fp8: bool, slots: int, ranges: list[list[int]]) -> None:
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(3, slots, 128, generator=generator).to(device)
    angle = torch.randn(22, generator=generator).to(device)
    k, scale = quantize(keys) if is_fp8 else (keys.bfloat16(), None)
    before = (k.float() if scale is None else dequantize(k, scale)).double()
    expected = before.clone()
    for start, stop in ranges:
        turned = rotate(before[:, start:stop, :44], angle.double().cos(), angle.double().sin())
        expected[:, start:stop, :44] = turned
    where = torch.tensor(ranges, dtype=torch.int32, device=device)
    rotate_slots(k, scale, angle.cos(), angle.sin(), where)
    after = k.float() if scale is None else dequantize(k, scale)
    assert calc_diff(after, expected) <= TOLERANCE[FP8 if is_fp8 else torch.bfloat16]
    kept = torch.ones(slots, dtype=torch.bool)
    for start, stop in ranges:
        kept[start:stop] = False
    assert torch.equal(after[:, kept], before[:, kept].float())


@pytest.mark.parametrize("is_fp8", [True, False], ids=["fp8", "bf16"])
def test_reference_turns_only_the_ranges(is_fp8: bool) -> None:
    check(torch.device("cpu"), is_fp8=is_fp8, slots=128, ranges=RANGES)


@pytest.mark.gpu
@pytest.mark.parametrize("is_fp8", [True, False], ids=["fp8", "bf16"])
@pytest.mark.parametrize("ranges", [RANGES, [[0, 0], [1, 128]]], ids=["two", "one"])
def test_kernel_matches_fp64(is_fp8: bool, ranges: list[list[int]], cuda: torch.device) -> None:
    check(cuda, is_fp8=is_fp8, slots=128, ranges=ranges)
