"""One program a row; the row stays in registers until its largest value is known."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from ..formats import overlaps_launches
from ..modulate_norm_quantize.kernel import quantized_row


@triton.jit
def _swiglu_quantize(
    raw, row_scale, col_scale, out, out_scale, width, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < width
    gate_ptr = raw + row * 2 * width + cols
    if PDL:
        gdc_wait()
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(row_scale + row)
    gate *= factor * tl.load(col_scale + cols, mask=mask, other=0.0)
    up *= factor * tl.load(col_scale + width + cols, mask=mask, other=0.0)
    # silu(g) = g / (1 + 2^(-g log2 e)); fast division and exponential are good to 2 ulp, and the
    # exact ones made this kernel bound by arithmetic (12.4 us).
    denominator = 1.0 + tl.exp2(gate * -1.4426950408889634)
    values, scale = quantized_row(tl.fdiv(gate, denominator) * up)
    tl.store(out + row * width + cols, values, mask=mask)
    tl.store(out_scale + row, scale)


def launch(
    raw: Tensor, row_scale: Tensor, col_scale: Tensor, out: Tensor, out_scale: Tensor
) -> None:
    """Launch on the current stream."""
    rows, width = out.shape
    pdl = overlaps_launches(raw)
    _swiglu_quantize[(rows,)](
        raw, row_scale, col_scale, out, out_scale, width,
        BLOCK=triton.next_power_of_2(width), PDL=pdl, num_warps=32, launch_pdl=pdl,
    )  # fmt: skip
