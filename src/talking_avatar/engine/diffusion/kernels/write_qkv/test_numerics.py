from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..formats import FP8, dequantize
from ..numerics import TOLERANCE, calc_diff
from . import QueryKeyValue, reference_write_qkv, write_qkv
from .cases import CASES, FULL, Case, random_case

FORMATS = pytest.mark.parametrize("is_fp8", [True, False], ids=["fp8", "bf16"])


def exact(case: Case, device: torch.device) -> QueryKeyValue:
    arguments, out = random_case(case, device, is_fp8=False)
    wide = QueryKeyValue(out.q.double(), out.k.double(), out.v.double())
    reference_write_qkv(**arguments, out=wide, eps=1e-6)
    return wide


def plain(out: QueryKeyValue) -> tuple[Tensor, Tensor, Tensor]:
    if out.q_scale is None or out.k_scale is None or out.v_scale is None:
        return out.q, out.k, out.v
    return (
        out.q.float() * out.q_scale,
        dequantize(out.k, out.k_scale),
        dequantize(out.v, out.v_scale, dim=1),
    )


def check(case: Case, device: torch.device, *, is_fp8: bool) -> None:
    arguments, out = random_case(case, device, is_fp8=is_fp8)
    write_qkv(**arguments, out=out)
    expected = exact(case, device)
    written = slice(case.start, case.start + case.rows)
    for actual, wanted in zip(plain(out), (expected.q, expected.k, expected.v), strict=True):
        assert calc_diff(actual, wanted) <= TOLERANCE[FP8 if is_fp8 else torch.bfloat16]
    untouched = torch.ones(case.slots, dtype=torch.bool)
    untouched[written] = False
    assert not plain(out)[1][:, untouched].any()
    assert not plain(out)[2][:, :, untouched].any()


@FORMATS
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_writes_only_its_slots(case: Case, is_fp8: bool) -> None:
    check(case, torch.device("cpu"), is_fp8=is_fp8)


@pytest.mark.gpu
@FORMATS
@pytest.mark.parametrize("case", [*CASES, FULL], ids=str)
def test_kernel_matches_the_reference(case: Case, is_fp8: bool, cuda: torch.device) -> None:
    check(case, cuda, is_fp8=is_fp8)


def test_no_query_exceeds_the_static_scale() -> None:
    arguments, out = random_case(CASES[1], torch.device("cpu"), is_fp8=True)
    arguments["raw"][:, 0] = 1e9  # a head whose norm sits in one element, the worst there is
    write_qkv(**arguments, out=out)
    assert out.q.float().abs().max() <= 448
    assert out.q.float().abs().max() >= 200
