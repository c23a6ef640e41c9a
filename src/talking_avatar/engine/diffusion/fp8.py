"""Eight-bit linear layers in plain torch: the reference that every faster path is compared with.

Takes: FP32 or BF16 activations, a weight rounded once. Gives: FP32 products.
Never: chooses a kernel.

A row of activations (one token) and a row of the weight (one output channel) have one FP32 scale
each; a value is ``fp8 * scale``. Both scales leave the sum, so the product is exact FP8 x FP8 with
FP32 sums, scaled once:

    y[t, n] = x_scale[t] * w_scale[n] * sum_k x8[t, k] * w8[n, k]
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from talking_avatar.engine.diffusion.kernels.formats import FP8, FP8_MAX, dequantize, quantize

__all__ = ["DTYPES", "FP8", "FP8_MAX", "dequantize", "fp8_linear", "quantize"]

DTYPES: MappingProxyType[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": FP8}
)
"""torch's type of each `Precision`."""


def fp8_linear(x_TK: Tensor, weight_NK: Tensor, scale_N: Tensor) -> Tensor:
    """Multiply with an FP8 weight; the activations are rounded to FP8 on the way.

    Args:
        x_TK: Activations, FP32 or BF16.
        weight_NK: ``float8_e4m3fn``.
        scale_N: FP32.

    Returns:
        FP32 [T, N].
    """
    x8_TK, x_scale_T = quantize(x_TK)
    sums_TN = F.linear(x8_TK.float(), weight_NK.float())
    return sums_TN * x_scale_T.unsqueeze(-1) * scale_N
