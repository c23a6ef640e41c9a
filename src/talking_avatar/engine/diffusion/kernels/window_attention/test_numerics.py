from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..formats import FP8, dequantize
from ..numerics import TOLERANCE, calc_diff
from ..write_qkv import QueryKeyValue
from . import AttentionWorkspace, window_attention
from .cases import CASES, FULL, Case, random_case
from .reference import attend

FORMATS = pytest.mark.parametrize("is_fp8", [True, False], ids=["fp8", "bf16"])


def exact(qkv: QueryKeyValue, ranges: Tensor) -> Tensor:
    tensors = (qkv.q, qkv.k, qkv.v, qkv.q_scale, qkv.k_scale, qkv.v_scale)
    return attend(QueryKeyValue(*(None if t is None else t.double() for t in tensors)), ranges)  # type: ignore[arg-type]


def error(case: Case, device: torch.device, *, is_fp8: bool) -> float:
    qkv, ranges = random_case(case, device, is_fp8=is_fp8)
    tokens, scale = window_attention(qkv, ranges)
    return calc_diff(tokens if scale is None else dequantize(tokens, scale), exact(qkv, ranges))


@FORMATS
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reference_ignores_what_lies_outside_the_ranges(case: Case, is_fp8: bool) -> None:
    tolerance = TOLERANCE[FP8 if is_fp8 else torch.bfloat16]
    assert error(case, torch.device("cpu"), is_fp8=is_fp8) <= tolerance


@pytest.mark.gpu
@FORMATS
@pytest.mark.parametrize("case", [*CASES, FULL], ids=lambda case: case.name)
def test_kernel_matches_fp64(case: Case, is_fp8: bool, cuda: torch.device) -> None:
    assert error(case, cuda, is_fp8=is_fp8) <= TOLERANCE[FP8 if is_fp8 else torch.bfloat16]


@pytest.mark.gpu
def test_kernel_is_bitwise_repeatable(cuda: torch.device) -> None:
    qkv, ranges = random_case(FULL, cuda, is_fp8=True)
    workspace = AttentionWorkspace.for_queries(qkv.q)
    first, _ = window_attention(qkv, ranges, workspace=workspace)
    for _ in range(20):
        again, _ = window_attention(qkv, ranges, workspace=workspace)
        assert torch.equal(first.view(torch.uint8), again.view(torch.uint8))


@pytest.mark.gpu
def test_one_graph_serves_every_offset(cuda: torch.device) -> None:
    qkv, ranges = random_case(FULL, cuda, is_fp8=False)
    workspace = AttentionWorkspace.for_queries(qkv.q)
    out = window_attention(qkv, ranges, workspace=workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        window_attention(qkv, ranges, out=out, workspace=workspace)
    for other in ([[0, 100], [0, 0], [0, 0]], [[0, 1246], [1247, 2000], [2004, 2005]]):
        ranges.copy_(torch.tensor(other, dtype=torch.int32))
        graph.replay()
        assert calc_diff(out[0], exact(qkv, ranges)) <= TOLERANCE[torch.bfloat16]
