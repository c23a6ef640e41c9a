"""What `reduce_modulate_quantize` computes. It does not wait: call it when all partials exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..modulate_norm_quantize.reference import reference_modulate_norm_quantize
from .tables import PeerTables

if TYPE_CHECKING:
    from . import Modulation


def reference_reduce_modulate_quantize(
    tables: PeerTables,
    residual: Tensor,
    modulation: Modulation,
    eps: float,
) -> None:
    """Write this rank's rows into every rank's output."""
    rows = slice(*tables.owned)
    total = torch.zeros_like(residual)
    for partial, row_scale in zip(tables.partials, tables.row_scales, strict=True):
        total += partial[rows].float().to(total.device) * row_scale[rows, None].to(total.device)
    residual += modulation.factor * total
    values, scales = reference_modulate_norm_quantize(
        residual, modulation.shift, modulation.scale, eps
    )
    for output, output_scale in zip(tables.outputs, tables.output_scales, strict=True):
        output.view(torch.uint8)[rows] = values.view(torch.uint8).to(output.device)
        output_scale[rows] = scales.to(output_scale.device)
