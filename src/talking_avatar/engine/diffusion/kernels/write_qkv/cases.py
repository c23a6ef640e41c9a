"""Random inputs of `write_qkv`: sizes of one of four ranks of avatar-57b, and small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..formats import FP8
from . import QueryKeyValue, query_scale


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes, and the first slot that is written."""

    heads: int
    rows: int
    dim: int
    slots: int
    start: int


CASES = (Case(2, 20, 64, 96, 5), Case(3, 33, 128, 48, 15))
FULL = Case(12, 757, 128, 7312, 1246 + 3 * 757)


def random_case(
    case: Case, device: torch.device, *, is_fp8: bool
) -> tuple[dict[str, Any], QueryKeyValue]:
    """Return the arguments before ``out``, and an ``out`` of zeros."""
    generator = torch.Generator().manual_seed(2)
    width = 3 * case.heads * case.dim

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    angle = random(case.rows, case.dim // 2)
    q_weight = 1 + 0.1 * random(case.dim)
    arguments = {
        "raw": (random(case.rows, width) * 5e5).bfloat16(),
        "row_scale": random(case.rows).abs() * 1e-2,
        "col_scale": random(width).abs() * 1e-3,
        "q_weight": q_weight,
        "k_weight": 1 + 0.1 * random(case.dim),
        "cos": angle.cos(),
        "sin": angle.sin(),
        "slot_start": torch.tensor(case.start, dtype=torch.int32, device=device),
    }
    kind: dict[str, Any] = {"dtype": FP8 if is_fp8 else torch.bfloat16, "device": device}
    out = QueryKeyValue(
        torch.zeros(case.heads, case.rows, case.dim, **kind),
        torch.zeros(case.heads, case.slots, case.dim, **kind),
        torch.zeros(case.heads, case.dim, case.slots, **kind),
    )
    if not is_fp8:
        return arguments, out
    scales = (torch.zeros(case.heads, case.slots, device=device) for _ in range(2))
    return arguments, QueryKeyValue(out.q, out.k, out.v, query_scale(q_weight), *scales)
