"""The FP8 reference: what one product loses, and that 200 chunks do not pile it up."""

from __future__ import annotations

import gc

import psutil
import torch

from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.fp8 import FP8, dequantize, fp8_linear, quantize


def test_scales_are_per_row_and_zeros_stay() -> None:
    x = torch.randn(6, 40) * 10.0 ** torch.arange(-3, 3)[:, None]
    x[2] = 0
    values, scale = quantize(x)
    assert values.dtype == FP8
    assert scale.shape == (6,)
    back = dequantize(values, scale)
    assert back[2].abs().max() == 0
    # e4m3 keeps 3 bits behind the leading one: half a step is 1/16; below 2^-6 steps are fixed.
    step = torch.maximum(x.abs() / 16, scale[:, None] * 2.0**-10)
    assert ((back - x).abs() <= step * 1.0001).all()


def test_one_product() -> None:
    """Two independent roundings of 2.6 % each in the mean square: 3.6 % of a random sum."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=draw) * torch.logspace(-2, 2, 64)[:, None]
    w = torch.randn(96, 256, generator=draw)
    w8, scale = quantize(w)
    exact = x @ w.T
    error = (fp8_linear(x, w8, scale) - exact).norm(dim=1) / exact.norm(dim=1)
    assert 0.025 < error.mean() < 0.045
    assert error.max() < 0.06, "a row's size does not matter: it has its own scale"


def test_200_chunks_do_not_pile_up_error(tiny: AvatarDiTConfig, start) -> None:
    """Weights, activations and cache in FP8 against FP32, each on its own past.

    Latents of random weights are an unkind case (nothing pulls two paths together), and still the
    error is that of single chunks: each chunk begins from the same noise and sees six chunks, so
    what FP8 does to one is forgotten with it. Five resets are among them.
    """
    exact, rounded = start(tiny), start(tiny, precision="fp8", kv_precision="fp8")
    errors, cosines = [], []
    for _ in range(200):
        a, b = exact.chunk(), rounded.chunk()
        errors.append(float((a - b).norm() / a.norm()))
        cosines.append(float(torch.cosine_similarity(a.flatten(), b.flatten(), 0)))
    chunks = torch.arange(200, dtype=torch.float64)
    error = torch.tensor(errors, dtype=torch.float64)
    centered = chunks - chunks.mean()
    slope = float((centered * (error - error.mean())).sum() / centered.square().sum())
    print(
        f"FP8 error {error.mean():.4f}, slope {slope:.2e} a chunk, least cosine {min(cosines):.5f}"
    )
    assert abs(slope) * 200 < 0.1 * error.mean(), (slope, error.mean())
    assert error.mean() < 0.02, "measured 0.0108, slope -1e-7 a chunk"
    assert min(cosines) > 0.9995


def resident_bytes_over(run, chunks: int) -> list[int]:
    process, seen = psutil.Process(), []
    for chunk in range(chunks):
        run.chunk()
        if chunk % 50 == 49:
            gc.collect()
            seen.append(process.memory_info().rss)
    return seen


def check_flat(seen: list[int]) -> None:
    """After the first fifth, nothing may grow: 1 MB is the allocator's own noise."""
    settled = seen[len(seen) // 5 :]
    assert max(settled) - settled[0] < 2**20, [s / 2**20 for s in seen]


def test_memory_is_flat_over_1000_chunks(tiny: AvatarDiTConfig, start) -> None:
    check_flat(resident_bytes_over(start(tiny, 2, kv_precision="fp8", precision="fp8"), 1_000))
