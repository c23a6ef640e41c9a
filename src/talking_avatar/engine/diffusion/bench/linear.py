"""Matrix products of one rank: the library's, with and without scales, and our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.bench.report import Row
from talking_avatar.engine.diffusion.bench.timing import per_call_us
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import fp8_linear, fp8_matmul
from talking_avatar.engine.diffusion.kernels.formats import quantize
from talking_avatar.engine.diffusion.kernels.numerics import calc_diff

ROTATED_BYTES = 200_000_000
"""Weights that one round goes through: three times the L2 of an H200."""
TILES = ((128, 256, 8, 4), (128, 128, 4, 5), (64, 256, 4, 4))
"""Our kernel's block of rows, block of columns, warps and stages."""


def shapes(config: AvatarDiTConfig, tp: int) -> dict[str, tuple[int, int]]:
    """Return (N, K) of a rank's four products."""
    inner, ffn = config.inner // tp, config.ffn // tp
    return {
        "qkv": (3 * inner, config.hidden),
        "out": (config.hidden, inner),
        "gate_up": (2 * ffn, config.hidden),
        "down": (config.hidden, ffn),
    }


def measure(config: AvatarDiTConfig, tp: int, device: torch.device) -> Iterator[Row]:
    """Time every product of a rank by every path; check each against FP64."""
    for name, (cols, depth) in shapes(config, tp).items():
        yield from _measure_shape(name, config.chunk_tokens, cols, depth, device)


def _measure_shape(
    name: str, rows: int, cols: int, depth: int, device: torch.device
) -> Iterator[Row]:
    x, x_scale = quantize(torch.randn(rows, depth, device=device))
    count = max(2, ROTATED_BYTES // (cols * depth))
    weights = [quantize(torch.randn(cols, depth, device=device)) for _ in range(count)]
    out = torch.empty(rows, cols, dtype=torch.bfloat16, device=device)
    w, w_scale = weights[0]
    raw = x.double() @ w.double().t()
    scaled = raw * x_scale[:, None] * w_scale
    for path, run, expected in _paths(x, x_scale, out, raw, scaled):
        out.fill_(float("nan"))
        run(w, w_scale)
        error = calc_diff(out, expected)
        us = per_call_us([partial(run, *pair) for pair in weights])
        tflops = 2 * rows * cols * depth / us / 1e6
        yield Row(
            name=f"{name} {rows}x{cols}x{depth} {path}",
            numbers={"us": us, "tflop_s": tflops, "calc_diff": error},
            note="checked against FP64",
        )


Run = Callable[[Tensor, Tensor], object]


def _paths(
    x: Tensor, x_scale: Tensor, out: Tensor, raw: Tensor, scaled: Tensor
) -> Iterator[tuple[str, Run, Tensor]]:
    yield "library, raw", lambda w, _: fp8_matmul(x, w, out=out), raw
    yield "library, row-wise", lambda w, s: fp8_linear(x, x_scale, w, s, out=out), scaled
    for block_m, block_n, warps, stages in TILES:
        run = partial(_run_ours, x, x_scale, out, block_m, block_n, warps, stages)
        yield f"ours {block_m}x{block_n}", run, scaled


def _run_ours(
    x: Tensor, x_scale: Tensor, out: Tensor, block_m: int, block_n: int, warps: int, stages: int,
    w: Tensor, w_scale: Tensor,
) -> None:  # fmt: skip
    from talking_avatar.engine.diffusion.kernels.fp8_linear.kernel import launch

    launch(x, x_scale, w, w_scale, out, block_m, block_n, num_warps=warps, num_stages=stages)
