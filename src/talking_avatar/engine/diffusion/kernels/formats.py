"""FP8 with scales: how values are rounded, and back. Reference arithmetic, any device."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
SMALLEST_AMAX = 1e-12
"""Rows of zeros get this as their largest value: their scale stays a normal number."""


def quantize(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Round to FP8 with one scale per slice along ``dim``.

    Args:
        x: Any shape.
        dim: The dimension that shares a scale.

    Returns:
        FP8 values, shape of ``x``; FP32 scales, shape of ``x`` without ``dim``.
    """
    x = x.float()
    scale = x.abs().amax(dim, keepdim=True).clamp_min(SMALLEST_AMAX) / FP8_MAX
    return (x / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale.squeeze(dim)


def dequantize(values: Tensor, scale: Tensor, dim: int = -1) -> Tensor:
    """Return ``values * scale`` in FP32; the inverse of `quantize` up to rounding."""
    return values.float() * scale.unsqueeze(dim)


def runs_triton(x: Tensor) -> bool:
    """Whether an op on ``x`` runs its Triton kernel; on a CPU it runs its reference."""
    return x.is_cuda


def overlaps_launches(x: Tensor) -> bool:
    """Whether a kernel on the GPU of ``x`` may start before the one ahead of it has ended.

    It then waits inside (programmatic dependent launch); GPUs before Hopper lack the instruction.
    """
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9
