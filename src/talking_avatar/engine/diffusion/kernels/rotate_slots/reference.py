"""What `rotate_slots` computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import dequantize, quantize
from ..write_qkv.reference import rotate


def reference_rotate_slots(
    k: Tensor, k_scale: Tensor | None, cos: Tensor, sin: Tensor, ranges: Tensor
) -> None:
    """Rotate the keys of each range in place."""
    turned = 2 * cos.shape[0]
    for start, stop in ranges.tolist():
        stored = k[:, start:stop]
        if k_scale is None:
            stored[..., :turned] = rotate(stored[..., :turned].float(), cos, sin).to(k.dtype)
            continue
        keys = dequantize(stored, k_scale[:, start:stop])
        keys[..., :turned] = rotate(keys[..., :turned], cos, sin)
        values, scale = quantize(keys)
        stored.view(torch.uint8).copy_(values.view(torch.uint8))
        k_scale[:, start:stop] = scale
