"""Attention over a full window: ours in FP8 and BF16, and the library's in BF16."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from talking_avatar.engine.diffusion.bench.report import Row
from talking_avatar.engine.diffusion.bench.shard import window_ranges
from talking_avatar.engine.diffusion.bench.timing import per_call_us
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import (
    AttentionWorkspace,
    QueryKeyValue,
    window_attention,
)
from talking_avatar.engine.diffusion.kernels.formats import FP8, FP8_MAX, dequantize, quantize
from talking_avatar.engine.diffusion.kernels.numerics import calc_diff
from talking_avatar.engine.diffusion.kernels.window_attention.reference import attend
from talking_avatar.engine.diffusion.kernels.window_attention.workspace import PORTABLE, Tiling

NUM_RINGS = 6
"""Rings that one round goes through: 130 MB in FP8, twice the L2 of an H200."""


def random_ring(
    config: AvatarDiTConfig, heads: int, device: torch.device, *, is_fp8: bool
) -> QueryKeyValue:
    """Return random queries and a full ring of one layer."""
    slots = -(-config.stored // 16) * 16
    q = torch.randn(heads, config.chunk_tokens, config.head_dim, device=device)
    k = torch.randn(heads, slots, config.head_dim, device=device)
    v = torch.randn(heads, config.head_dim, slots, device=device)
    if not is_fp8:
        return QueryKeyValue(q.bfloat16(), k.bfloat16(), v.bfloat16())
    q_scale = q.abs().max() / FP8_MAX
    k8, k_scale = quantize(k)
    v8, v_scale = quantize(v * torch.rand_like(v[:, :1]), dim=1)
    return QueryKeyValue((q / q_scale).to(FP8), k8, v8, q_scale, k_scale, v_scale)


def measure(config: AvatarDiTConfig, tp: int, device: torch.device) -> Iterator[Row]:
    """Time one rank's attention call by every path; check ours against FP64."""
    heads = config.num_heads // tp
    ranges = window_ranges(config, device)
    flops = 4 * config.chunk_tokens * config.attended * config.head_dim * heads
    for is_fp8 in (True, False):
        rings = [random_ring(config, heads, device, is_fp8=is_fp8) for _ in range(NUM_RINGS)]
        for name, tiling in (("ours", None), ("ours, portable kernel", PORTABLE)):
            us, error = _time_ours(rings, ranges, tiling)
            yield Row(
                name=f"{name}, {'FP8' if is_fp8 else 'BF16'}, {heads} heads",
                numbers={"us": us, "tflop_s": flops / us / 1e6, "calc_diff": error},
                note="both launches, output quantized" if is_fp8 else "both launches",
            )
    yield _library(config, heads, flops, device)


def _time_ours(
    rings: list[QueryKeyValue], ranges: Tensor, tiling: Tiling | None
) -> tuple[float, float]:
    workspace = AttentionWorkspace.for_queries(rings[0].q, tiling)
    out = window_attention(rings[0], ranges, workspace=workspace)

    def attend_to(ring: QueryKeyValue) -> None:
        window_attention(ring, ranges, out=out, workspace=workspace)

    us = per_call_us([partial(attend_to, ring) for ring in rings])
    return us, _error(rings[-1], ranges, out)


def _error(ring: QueryKeyValue, ranges: Tensor, out: tuple[Tensor, Tensor | None]) -> float:
    tensors = (ring.q, ring.k, ring.v, ring.q_scale, ring.k_scale, ring.v_scale)
    exact = attend(QueryKeyValue(*(t if t is None else t.double() for t in tensors)), ranges)  # type: ignore[arg-type]
    tokens, scale = out
    return calc_diff(tokens if scale is None else dequantize(tokens, scale), exact)


def _library(config: AvatarDiTConfig, heads: int, flops: int, device: torch.device) -> Row:
    def random(rows: int) -> Tensor:
        return torch.randn(1, heads, rows, config.head_dim, device=device, dtype=torch.bfloat16)

    q = random(config.chunk_tokens)
    pairs = [(random(config.attended), random(config.attended)) for _ in range(4)]

    def run(k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)

    us = per_call_us([partial(run, *pair) for pair in pairs])
    return Row(
        name=f"library (cuDNN), BF16, {heads} heads",
        numbers={"us": us, "tflop_s": flops / us / 1e6},
        note="keys in one piece, already gathered",
    )
