"""From a raw QKV product straight into the ring: norm, rotary position, FP8, one pass.

The cache is written, not maintained: what this op stores is what attention reads until the slot
is written again.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..formats import FP8_MAX, runs_triton
from .reference import reference_write_qkv

__all__ = ["QueryKeyValue", "query_scale", "reference_write_qkv", "write_qkv"]


@dataclass(frozen=True, slots=True, eq=False)
class QueryKeyValue:
    """Where `write_qkv` writes: queries of this pass, and the whole ring of one layer.

    Attributes:
        q: (heads, M, dim), FP8 or BF16.
        k: (heads, slots, dim), same format.
        v: (heads, dim, slots), same format.
        q_scale: FP32 scalar, see `query_scale`: queries are normed, so that one scale serves all
            of them; None for BF16, as the next two.
        k_scale, v_scale: FP32 (heads, slots).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_scale: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


def query_scale(q_weight: Tensor) -> Tensor:
    """Return the one scale of all FP8 queries of a layer: FP32, a scalar.

    After an RMS norm a vector's length is sqrt(dim), so no element exceeds sqrt(dim) times the
    largest weight; FP8 is a floating format, so the typical element, ten times smaller, keeps
    its four bits.

    Args:
        q_weight: (dim,), weight of the norm.
    """
    scale: Tensor = q_weight.float().abs().max() * q_weight.shape[0] ** 0.5 / FP8_MAX
    return scale


def write_qkv(
    raw: Tensor,
    row_scale: Tensor,
    col_scale: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_start: Tensor,
    out: QueryKeyValue,
    *,
    eps: float = 1e-6,
) -> None:
    """Norm and rotate queries and keys per head, and write all three, rounded once.

    Args:
        raw: BF16 (M, 3 * heads * dim), columns q then k then v, without scales.
        row_scale: FP32 (M,), the scales of the activations that made ``raw``.
        col_scale: FP32 (3 * heads * dim,), the scales of the weights that made ``raw``.
        q_weight: FP32 (dim,), weight of the queries' RMS norm within a head.
        k_weight: FP32 (dim,), of the keys'.
        cos: FP32 (M, dim / 2), of each token's position.
        sin: FP32 (M, dim / 2).
        slot_start: int32 scalar on the device: token i goes to slot ``slot_start + i``.
        out: What is written. Other slots stay as they are.
        eps: Added to the mean square.

    Raises:
        ValueError: On shapes that don't fit.
    """
    heads, rows, dim = out.q.shape
    if raw.shape != (rows, 3 * heads * dim) or cos.shape != (rows, dim // 2):
        raise ValueError(
            f"queries {tuple(out.q.shape)} need raw ({rows}, {3 * heads * dim}) and cos, sin "
            f"({rows}, {dim // 2}), not {tuple(raw.shape)} and {tuple(cos.shape)}"
        )
    if out.k.shape[2] != dim or out.v.shape != (heads, dim, out.k.shape[1]):
        raise ValueError(
            f"cache needs k (heads, slots, dim) and v (heads, dim, slots), not "
            f"{tuple(out.k.shape)} and {tuple(out.v.shape)}"
        )
    arguments = (raw, row_scale, col_scale, q_weight, k_weight, cos, sin, slot_start, out, eps)
    if not runs_triton(raw):
        reference_write_qkv(*arguments)
        return
    from .kernel import launch

    launch(*arguments)
