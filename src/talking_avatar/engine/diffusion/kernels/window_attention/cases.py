"""Shapes and ranges that `window_attention` must get right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..formats import FP8, FP8_MAX, quantize
from ..write_qkv import QueryKeyValue


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes, and the ranges that are attended."""

    name: str
    heads: int
    rows: int
    slots: int
    dim: int
    ranges: tuple[tuple[int, int], ...]


CASES = (
    Case("sink only", 2, 40, 64, 64, ((0, 37), (0, 0), (0, 0))),
    Case("one token", 1, 1, 16, 128, ((0, 0), (5, 6), (0, 0))),
    Case("wrapped", 3, 130, 512, 128, ((0, 129), (129, 206), (360, 437))),
)
FULL = Case(
    "avatar-57b, one of four ranks", 12, 757, 7312, 128, ((0, 1246), (1246, 3517), (5031, 7302))
)


def random_case(case: Case, device: torch.device, *, is_fp8: bool) -> tuple[QueryKeyValue, Tensor]:
    """Return random tensors; slots outside the ranges hold the largest numbers there are."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    q = random(case.heads, case.rows, case.dim)
    k = random(case.heads, case.slots, case.dim)
    v = random(case.heads, case.dim, case.slots) * random(case.heads, 1, case.slots)
    attended = torch.zeros(case.slots, dtype=torch.bool)
    for start, stop in case.ranges:
        attended[start:stop] = True
    k[:, ~attended], v[:, :, ~attended] = 1e3, 1e3
    ranges = torch.tensor(case.ranges, dtype=torch.int32, device=device)
    if not is_fp8:
        return QueryKeyValue(q.bfloat16(), k.bfloat16(), v.bfloat16()), ranges
    q_scale = q.abs().max() / FP8_MAX
    (k8, k_scale), (v8, v_scale) = quantize(k), quantize(v, dim=1)
    return QueryKeyValue((q / q_scale).to(FP8), k8, v8, q_scale, k_scale, v_scale), ranges
