from __future__ import annotations

import pytest
import torch

from ..formats import FP8, dequantize
from ..numerics import TOLERANCE, calc_diff
from . import modulate_norm_quantize
from .reference import normalize_modulate


def error(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(5)
    x = (torch.randn(rows, width, generator=generator) * 3 + 1).to(dtype).to(device)
    shift, scale = (torch.randn(2, width, generator=generator) * 0.1).to(device)
    values, scales = modulate_norm_quantize(x, shift, scale)
    expected = normalize_modulate(x.double(), shift.double(), scale.double(), 1e-6)
    return calc_diff(dequantize(values, scales), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_matches_fp64(dtype: torch.dtype) -> None:
    assert error(9, 100, dtype, torch.device("cpu")) <= TOLERANCE[FP8]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (40, 384), (757, 8192)])
def test_kernel_matches_fp64(rows: int, width: int, dtype: torch.dtype, cuda: torch.device) -> None:
    assert error(rows, width, dtype, cuda) <= TOLERANCE[FP8]
