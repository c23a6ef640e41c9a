"""One rank's shard of a model with random weights: everything a step does but the wires.

What is emulated: the other ranks. Their partial products and scales are fixed random buffers on
this GPU, and what this rank hands to them goes to further buffers here. So every byte that a real
rank reads, adds, norms, quantizes and writes is read and written, from local memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import (
    AttentionWorkspace,
    Modulation,
    PeerTables,
    QueryKeyValue,
    query_scale,
)
from talking_avatar.engine.diffusion.kernels.formats import FP8, quantize

SLOT_UNIT = 16
PEERS_ARE_READY = 1 << 30
"""Epoch that emulated peers have always reached."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """One layer: FP8 matrices (N, K) with one scale per row, and what is small."""

    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    gate_up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    q_norm: Tensor
    k_norm: Tensor


def random_matrix(rows: int, depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a quantized random matrix whose products keep their input's size."""
    return quantize(torch.randn(rows, depth, device=device) * depth**-0.5)


def window_ranges(config: AvatarDiTConfig, device: torch.device) -> Tensor:
    """Return the sink and a window that wraps: three ranges (3, 2), as in most steps."""
    chunk, sink = config.chunk_tokens, config.num_sink
    newer = config.window // 2
    older = config.window - newer
    ranges = [
        [0, sink],
        [sink, sink + newer * chunk],
        [config.stored - older * chunk, config.stored],
    ]
    return torch.tensor(ranges, dtype=torch.int32, device=device)


class Shard:
    """Weights, ring and buffers of one rank, all allocated once.

    Args:
        config: The model.
        tp: Ranks it is divided over.
        device: The GPU.
        num_layers: Fewer than the model's for a quick look.
    """

    def __init__(
        self,
        config: AvatarDiTConfig,
        tp: int,
        device: torch.device,
        num_layers: int | None = None,
    ) -> None:
        self.config, self.tp, self.device = config, tp, device
        self.num_layers = num_layers or config.num_layers
        self.tokens = config.chunk_tokens
        self.heads = config.num_heads // tp
        self.dim = config.head_dim
        self.layers = [self._weights() for _ in range(self.num_layers)]
        self._allocate_cache()
        self._allocate_activations()
        self._allocate_modulation()

    def _weights(self) -> Weights:
        hidden, inner, ffn = self.config.hidden, self.heads * self.dim, self.config.ffn // self.tp
        return Weights(
            qkv=random_matrix(3 * inner, hidden, self.device),
            out=random_matrix(hidden, inner, self.device),
            gate_up=random_matrix(2 * ffn, hidden, self.device),
            down=random_matrix(hidden, ffn, self.device),
            q_norm=torch.ones(self.dim, device=self.device),
            k_norm=torch.ones(self.dim, device=self.device),
        )

    def _allocate_cache(self) -> None:
        config, device = self.config, self.device
        slots = -(-config.stored // SLOT_UNIT) * SLOT_UNIT
        self.ranges = window_ranges(config, device)
        start = config.num_sink + (config.window // 2 - 1) * self.tokens
        self.slot_start = torch.tensor(start, dtype=torch.int32, device=device)
        self.no_slot = torch.zeros((), dtype=torch.int32, device=device)
        self.rings: list[QueryKeyValue] = []
        q = torch.zeros(self.heads, self.tokens, self.dim, dtype=FP8, device=device)
        q_scale = query_scale(self.layers[0].q_norm)
        for _ in range(self.num_layers):
            k = torch.randn(self.heads, slots, self.dim, device=device)
            v = torch.randn(self.heads, self.dim, slots, device=device)
            k8, k_scale = quantize(k)
            v8, v_scale = quantize(v, dim=1)
            self.rings.append(QueryKeyValue(q, k8, v8, q_scale, k_scale, v_scale))
        self.workspace = AttentionWorkspace.for_queries(q)
        angle = torch.rand(self.tokens, self.dim // 2, device=device) * 6.28
        self.cos, self.sin = angle.cos(), angle.sin()

    def _allocate_activations(self) -> None:
        rows, hidden, device, tp = self.tokens, self.config.hidden, self.device, self.tp
        inner, ffn = self.heads * self.dim, self.config.ffn // self.tp
        bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
        self.raw_qkv = torch.empty(rows, 3 * inner, **bf16)
        self.raw_gate_up = torch.empty(rows, 2 * ffn, **bf16)
        self.attended = quantize(torch.randn(rows, inner, device=device))
        self.expanded = quantize(torch.randn(rows, ffn, device=device))
        self.inputs = [quantize(torch.randn(rows, hidden, device=device)) for _ in range(tp)]
        partials = [
            (torch.randn(rows, hidden, device=device) * 448 * 448).bfloat16() for _ in range(tp)
        ]
        flags = [
            torch.full((tp,), PEERS_ARE_READY, dtype=torch.int32, device=device)
            for _ in range(2 * tp)
        ]
        flags[0][0] = flags[tp][0] = 0
        peer_scales = [torch.rand(rows, device=device) * 1e-2 for _ in range(tp - 1)]
        self.tables = {
            name: PeerTables.of(
                0,
                partials,
                [own_scale, *peer_scales],
                [x for x, _ in self.inputs],
                [scale for _, scale in self.inputs],
                flags[:tp],
                flags[tp:],
            )
            for name, own_scale in (("out", self.attended[1]), ("down", self.expanded[1]))
        }
        # One state: both products count epochs in turn, over the same flags.
        state = self.tables["out"].state
        self.tables["down"] = replace(self.tables["down"], state=state)
        start, stop = self.tables["out"].owned
        self.residual = torch.randn(stop - start, hidden, device=device)

    def _allocate_modulation(self) -> None:
        hidden, passes = self.config.hidden, len(self.config.sigmas)
        shape = passes, self.num_layers, 6, hidden
        self.modulation = torch.randn(shape, device=self.device) * 0.1
        for layer, weights in enumerate(self.layers):
            self.modulation[:, layer, 2] *= weights.out[1]
            self.modulation[:, layer, 5] *= weights.down[1]

    def modulations(self, step: int, layer: int) -> tuple[Modulation, Modulation]:
        """Return those of the two reductions of a layer: each norms for what follows it."""
        this = self.modulation[step, layer]
        following = self.modulation[step, (layer + 1) % self.num_layers]
        return (
            Modulation(factor=this[2], shift=this[3], scale=this[4]),
            Modulation(factor=this[5], shift=following[0], scale=following[1]),
        )
