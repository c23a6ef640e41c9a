"""One program a row; the row stays in registers between its three reductions."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from ..formats import overlaps_launches


@triton.jit
def modulated_row(x, shift, gain, mask, width, eps):
    """Normalize and modulate one row; all of it is in registers already."""
    mean = tl.sum(x, 0) / width
    centered = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, 0) / width + eps)
    return tl.where(mask, centered * rstd * gain + shift, 0.0)


@triton.jit
def quantized_row(y):
    """Return one row in FP8 and its scale."""
    scale = tl.maximum(tl.max(tl.abs(y), 0), 1e-12) / 448.0
    return (y * (1.0 / scale)).to(tl.float8e4nv), scale


@triton.jit
def _modulate_norm_quantize(
    x, shift, scale, out, out_scale, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < width
    if PDL:
        gdc_wait()
    values = tl.load(x + row * width + cols, mask=mask, other=0.0).to(tl.float32)
    gain = 1.0 + tl.load(scale + cols, mask=mask, other=0.0)
    offset = tl.load(shift + cols, mask=mask, other=0.0)
    quantized, row_scale = quantized_row(modulated_row(values, offset, gain, mask, width, eps))
    tl.store(out + row * width + cols, quantized, mask=mask)
    tl.store(out_scale + row, row_scale)


def launch(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float, out: Tensor, out_scale: Tensor
) -> None:
    """Launch on the current stream."""
    rows, width = x.shape
    pdl = overlaps_launches(x)
    _modulate_norm_quantize[(rows,)](
        x, shift, scale, out, out_scale, width, eps,
        BLOCK=triton.next_power_of_2(width), PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
