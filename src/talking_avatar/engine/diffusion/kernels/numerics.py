"""How far two tensors differ: one metric, and one tolerance per format with its reason."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {
    torch.float32: 1e-10,
    torch.bfloat16: 1e-5,
    torch.float8_e4m3fn: 1e-3,
}
"""Largest `calc_diff` of a correct result, by the format it was rounded to.

The metric is about half the squared relative error. Rounding to BF16 (8 bits) leaves 1.1e-3
relative, 6e-7 here, and the tensor cores' short FP8 accumulator up to 1e-3 more; rounding to
E4M3 (4 bits) leaves 2.6e-2, 3.5e-4 here. Each bound is about three such errors in a row.
"""


def calc_diff(actual: Tensor, expected: Tensor) -> float:
    """Return ``1 - 2<a, e> / (<a, a> + <e, e>)`` in FP64: 0 for equal tensors.

    It falls with direction and with magnitude, unlike a cosine. NaN or infinity anywhere in
    ``actual`` gives infinity, so that a comparison with a tolerance fails.

    Args:
        actual: Any shape and format.
        expected: Same shape.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    a, e = actual.double(), expected.double().to(actual.device)
    if not bool(torch.isfinite(a).all()):
        return float("inf")
    energy = float((a * a + e * e).sum())
    return 0.0 if energy == 0.0 else 1.0 - 2.0 * float((a * e).sum()) / energy
