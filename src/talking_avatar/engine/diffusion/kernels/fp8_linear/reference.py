"""What `fp8_matmul` computes."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_fp8_matmul(x: Tensor, w: Tensor) -> Tensor:
    """Return ``x @ w.T`` in BF16, summed in FP32."""
    return (x.float() @ w.float().t()).to(torch.bfloat16)
