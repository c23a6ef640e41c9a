from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ..formats import FP8, dequantize
from ..numerics import TOLERANCE, calc_diff
from . import swiglu_quantize


def error(rows: int, width: int, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(4)
    raw = (torch.randn(rows, 2 * width, generator=generator) * 5e5).bfloat16().to(device)
    row_scale = torch.rand(rows, generator=generator).to(device) * 1e-2
    col_scale = torch.rand(2 * width, generator=generator).to(device) * 1e-3
    gate, up = (raw.double() * row_scale.double()[:, None] * col_scale.double()).chunk(2, -1)
    values, scale = swiglu_quantize(raw, row_scale, col_scale)
    return calc_diff(dequantize(values, scale), F.silu(gate) * up)


def test_reference_matches_fp64() -> None:
    assert error(7, 96, torch.device("cpu")) <= TOLERANCE[FP8]


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (33, 640), (757, 7680)])
def test_kernel_matches_fp64(rows: int, width: int, cuda: torch.device) -> None:
    assert error(rows, width, cuda) <= TOLERANCE[FP8]


def test_zero_rows_stay_finite() -> None:
    values, scale = swiglu_quantize(
        torch.zeros(2, 32, dtype=torch.bfloat16), torch.ones(2), torch.ones(32)
    )
    assert torch.isfinite(scale).all()
    assert not values.float().any()
