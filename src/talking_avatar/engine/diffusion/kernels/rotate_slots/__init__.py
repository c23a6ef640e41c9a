"""Lower the position of stored keys at a reset: rotate their temporal slice, round again."""

from __future__ import annotations

from torch import Tensor

from ..formats import runs_triton
from .reference import reference_rotate_slots

__all__ = ["reference_rotate_slots", "rotate_slots"]


def rotate_slots(
    k: Tensor, k_scale: Tensor | None, cos: Tensor, sin: Tensor, ranges: Tensor
) -> None:
    """Rotate the first pairs of every key in ``ranges``, in place.

    R(p - d) k = R(-d) R(p) k: keys already rotated by their position p are moved to p - d by one
    rotation, the same for all, and only the temporal pairs turn. An FP8 key is rounded a second
    time; its scale is taken anew.

    Args:
        k: Keys (heads, slots, dim), FP8 or BF16 or FP32, contiguous.
        k_scale: FP32 (heads, slots); None unless FP8.
        cos: FP32 (P,), P <= dim / 2: of the angle by which the first P pairs turn.
        sin: FP32 (P,).
        ranges: int32 (2, 2) on the device: ``[start, stop)`` of slots, may be empty.

    Raises:
        ValueError: On shapes that don't fit.
    """
    if cos.shape != sin.shape or cos.shape[0] > k.shape[2] // 2 or ranges.shape != (2, 2):
        raise ValueError(
            f"keys of {k.shape[2]} need at most {k.shape[2] // 2} cosines and sines and ranges "
            f"(2, 2), not {tuple(cos.shape)}, {tuple(sin.shape)} and {tuple(ranges.shape)}"
        )
    if not runs_triton(k):
        reference_rotate_slots(k, k_scale, cos, sin, ranges)
        return
    from .kernel import launch

    launch(k, k_scale, cos, sin, ranges)
