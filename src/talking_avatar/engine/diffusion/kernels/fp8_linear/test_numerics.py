from __future__ import annotations

import pytest
import torch

from ..formats import quantize
from ..numerics import TOLERANCE, calc_diff
from . import fp8_linear, fp8_matmul

SHAPES = [(1, 128, 128), (64, 256, 1536), (757, 4608, 8192), (757, 8192, 1536), (1024, 512, 7680)]


def check(rows: int, cols: int, depth: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(6)
    x, x_scale = quantize(torch.randn(rows, depth, generator=generator).to(device))
    w, w_scale = quantize(torch.randn(cols, depth, generator=generator).to(device))
    product = x.double() @ w.double().t()
    scaled = product * x_scale.double()[:, None] * w_scale.double()
    assert calc_diff(fp8_matmul(x, w), product) <= TOLERANCE[torch.bfloat16]
    assert calc_diff(fp8_linear(x, x_scale, w, w_scale), scaled) <= TOLERANCE[torch.bfloat16]


def test_reference_matches_fp64() -> None:
    check(5, 32, 64, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "cols", "depth"), SHAPES)
def test_library_products_match_fp64(rows: int, cols: int, depth: int, cuda: torch.device) -> None:
    check(rows, cols, depth, cuda)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "cols", "depth"), SHAPES)
def test_own_kernel_matches_fp64(rows: int, cols: int, depth: int, cuda: torch.device) -> None:
    from .kernel import launch

    x, x_scale = quantize(torch.randn(rows, depth, device=cuda))
    w, w_scale = quantize(torch.randn(cols, depth, device=cuda))
    out = torch.full((rows, cols), float("nan"), dtype=torch.bfloat16, device=cuda)
    launch(x, x_scale, w, w_scale, out, 128, 128, num_warps=4, num_stages=4)
    scaled = (x.double() @ w.double().t()) * x_scale[:, None] * w_scale
    assert calc_diff(out, scaled) <= TOLERANCE[torch.bfloat16]
