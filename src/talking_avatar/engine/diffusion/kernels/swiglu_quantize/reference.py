"""What `swiglu_quantize` computes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..formats import quantize


def reference_swiglu_quantize(
    raw: Tensor, row_scale: Tensor, col_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Return FP8 (M, F) and its scales (M,)."""
    gate, up = (raw.float() * row_scale[:, None] * col_scale).chunk(2, dim=-1)
    return quantize(F.silu(gate) * up)
