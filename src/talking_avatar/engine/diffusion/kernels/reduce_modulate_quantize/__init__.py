"""The all-reduce of a row-parallel product, as the owner of some rows does it, in one launch.

Every rank leaves its raw partial product in its own memory. Rank r owns a range of rows: it
reads these from every rank in rank order, sums them in FP32, adds the gated sum to the residual
it alone keeps, norms, modulates, rounds to FP8 and writes the rows into every rank's input of
the next product. So 2 bytes travel in and 1 byte out, and all ranks hold equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..formats import runs_triton
from .reference import reference_reduce_modulate_quantize
from .tables import PeerTables

__all__ = [
    "Modulation",
    "PeerTables",
    "reduce_modulate_quantize",
    "reference_reduce_modulate_quantize",
]


@dataclass(frozen=True, slots=True, eq=False)
class Modulation:
    """AdaLN vectors of one place in the network, FP32 (H,) each.

    Attributes:
        factor: Gate of the product that is being reduced, times the scales of its weight's rows.
            These are equal on all ranks: a row-parallel weight takes its scale over all shards.
        shift, scale: Of the norm that follows.
    """

    factor: Tensor
    shift: Tensor
    scale: Tensor


def reduce_modulate_quantize(
    tables: PeerTables,
    residual: Tensor,
    modulation: Modulation,
    *,
    eps: float = 1e-6,
) -> None:
    """Reduce, add, norm, modulate, quantize and hand out this rank's rows.

    Args:
        tables: Where partial products, their row scales, outputs and flags of all ranks are.
        residual: FP32 (rows owned, H), updated in place.
        modulation: What the sum is multiplied by, and the next norm's shift and scale.
        eps: Added to the variance.

    Raises:
        ValueError: On shapes that don't fit.
    """
    start, stop = tables.owned
    if residual.shape != (stop - start, modulation.factor.shape[0]):
        raise ValueError(
            f"residual {tuple(residual.shape)} must be ({stop - start}, "
            f"{modulation.factor.shape[0]}): "
            "the rows this rank owns"
        )
    if not runs_triton(residual):
        reference_reduce_modulate_quantize(tables, residual, modulation, eps)
        return
    from .kernel import launch

    launch(tables, residual, modulation, eps)
