"""Keys and values of one rank, in tensors: written rotated and quantized, once.

Takes: rotated keys and values of a chunk, and slot ranges from `ring`.
Gives: attention over ranges; rotation of stored keys at a reset.
Never: decides where anything lives, or rotates what it is given to write.

Layouts (L layers, H heads of this rank, S slots, D head_dim):

    k        [L, H, S, D]     v        [L, H, D, S]
    k_scale  [L, H, S]        v_scale  [L, H, S]      FP32, FP8 caches only

S is ``stored`` rounded up to 16; the slots beyond are never read. Memory starts as zeros: a slot
that was never written holds a finite number. A value is ``stored * scale``; in a kernel K's scale
folds into the logits, V's into the probabilities.

One cache belongs to one stream on one rank, and one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from talking_avatar.engine.diffusion.cache.ring import RingShape, SlotRange
from talking_avatar.engine.diffusion.config import Precision
from talking_avatar.engine.diffusion.fp8 import DTYPES, FP8, dequantize, quantize
from talking_avatar.engine.diffusion.kernels.rotate_slots import rotate_slots
from talking_avatar.engine.diffusion.model.rope import Rotation

SLOT_UNIT = 16
"""Slots are allocated by this many: rows of V are then aligned for FP8 tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Sizes of one rank's cache."""

    num_layers: int
    num_heads: int
    head_dim: int
    ring: RingShape

    @property
    def num_slots(self) -> int:
        return -(-self.ring.stored // SLOT_UNIT) * SLOT_UNIT


class KVCache:
    """One rank's keys and values of one stream."""

    def __init__(
        self, shape: KVShape, precision: Precision, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate and zero it; nothing is allocated later.

        Args:
            shape: Its sizes.
            precision: Of the stored numbers.
            device: Where.
        """
        layers, heads, slots, dim = (
            shape.num_layers, shape.num_heads, shape.num_slots, shape.head_dim,
        )  # fmt: skip
        dtype = DTYPES[precision]
        self.shape = shape
        self.precision = precision
        self.k_LHSD = torch.zeros(layers, heads, slots, dim, dtype=dtype, device=device)
        self.v_LHDS = torch.zeros(layers, heads, dim, slots, dtype=dtype, device=device)
        scales = (layers, heads, slots if precision == "fp8" else 0)
        self.k_scale_LHS = torch.zeros(scales, dtype=torch.float32, device=device)
        self.v_scale_LHS = torch.zeros(scales, dtype=torch.float32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        tensors = (self.k_LHSD, self.v_LHDS, self.k_scale_LHS, self.v_scale_LHS)
        return sum(tensor.nbytes for tensor in tensors)

    def write(self, layer: int, slots: SlotRange, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store a chunk's rotated keys and its values; quantizes them where the cache is FP8.

        Args:
            layer: Index of the layer.
            slots: As many slots as there are tokens.
            k_THD: [tokens, heads, head_dim].
            v_THD: Likewise.
        """
        assert slots.num_slots == len(k_THD), (slots, k_THD.shape)
        k_HTD, v_HTD = k_THD.transpose(0, 1), v_THD.transpose(0, 1)
        taken = slice(*slots)
        if self.precision == "fp8":
            k_HTD, self.k_scale_LHS[layer, :, taken] = quantize(k_HTD)
            v_HTD, self.v_scale_LHS[layer, :, taken] = quantize(v_HTD)
        _store(self.k_LHSD[layer, :, taken], k_HTD)
        _store(self.v_LHDS[layer, :, :, taken], v_HTD.transpose(1, 2))

    def attend(self, layer: int, q_THD: Tensor, ranges: Sequence[SlotRange]) -> Tensor:
        """Give softmax(q k / sqrt(D)) v over the slots of ``ranges``.

        Args:
            layer: Index of the layer.
            q_THD: Rotated queries [tokens, heads, head_dim].
            ranges: Slots to see; not empty, and not overlapping.

        Returns:
            [tokens, heads, head_dim] in the queries' type.
        """
        k_HSD = torch.cat([self.keys(layer, slots) for slots in ranges], 1)
        v_HSD = torch.cat([self.values(layer, slots) for slots in ranges], 1)
        q_HTD = q_THD.transpose(0, 1)
        if self.precision == "fp8":
            q_HTD = q_HTD.float()
        mixed = F.scaled_dot_product_attention(q_HTD, k_HSD.to(q_HTD.dtype), v_HSD.to(q_HTD.dtype))
        return mixed.transpose(0, 1).to(q_THD.dtype)

    def keys(self, layer: int, slots: SlotRange) -> Tensor:
        """Read keys [heads, slots, head_dim], dequantized."""
        stored = self.k_LHSD[layer, :, slice(*slots)]
        if self.precision != "fp8":
            return stored
        return dequantize(stored, self.k_scale_LHS[layer, :, slice(*slots)])

    def values(self, layer: int, slots: SlotRange) -> Tensor:
        """Read values [heads, slots, head_dim], dequantized."""
        stored = self.v_LHDS[layer, :, :, slice(*slots)].transpose(1, 2)
        if self.precision != "fp8":
            return stored
        return dequantize(stored, self.v_scale_LHS[layer, :, slice(*slots)])

    def turn_back(self, slots: SlotRange, rotation: Rotation) -> None:
        """Rotate stored keys of every layer in place: a reset of positions.

        Only the channels that turn with time change. An FP8 key is quantized a second time, anew
        over the whole key; see docs/design/positions.md for what that adds.

        Args:
            slots: Usually the whole ring.
            rotation: By the (negative) difference, for the temporal channels.
        """
        ranges = torch.tensor([slots, (0, 0)], dtype=torch.int32, device=self.k_LHSD.device)
        is_fp8 = self.precision == "fp8"
        for layer in range(self.shape.num_layers):
            scale_HS = self.k_scale_LHS[layer] if is_fp8 else None
            rotate_slots(self.k_LHSD[layer], scale_HS, rotation.cos, rotation.sin, ranges)


def _store(target: Tensor, values: Tensor) -> None:
    """Copy, FP8 by its bytes: not every torch copies FP8 between slices on a CPU."""
    if target.dtype == FP8:
        target, values = target.view(torch.uint8), values.view(torch.uint8)
    target.copy_(values)
