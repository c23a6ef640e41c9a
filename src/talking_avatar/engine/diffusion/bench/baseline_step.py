"""The step before any of this engine's kernels: library products and plain torch operations.

The cache holds raw BF16 keys. At each of a step's calls the whole window is gathered, rotated by
its positions and quantized again, keys and values; norms, modulation, quantization, SwiGLU and
the reduction are torch operations of their own. Attention itself is the same FP8 kernel, so that
the two steps differ in upkeep and fusion only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from talking_avatar.engine.diffusion.bench.shard import Shard
from talking_avatar.engine.diffusion.kernels import (
    AttentionWorkspace,
    QueryKeyValue,
    fp8_linear,
    window_attention,
)
from talking_avatar.engine.diffusion.kernels.formats import FP8, FP8_MAX, quantize
from talking_avatar.engine.diffusion.kernels.write_qkv.reference import rms_norm, rotate


class Baseline:
    """Buffers that only the baseline needs, beside a shard's weights."""

    def __init__(self, shard: Shard) -> None:
        config, device = shard.config, shard.device
        heads, dim, rows = shard.heads, shard.dim, shard.tokens
        self.shard = shard
        bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
        shape = heads, shard.rings[0].k.shape[1], dim
        self.keys = [torch.randn(*shape, **bf16) for _ in range(shard.num_layers)]
        self.values = [torch.randn(*shape, **bf16) for _ in range(shard.num_layers)]
        spans = [torch.arange(a, b) for a, b in shard.ranges.tolist()]
        self.slots = torch.cat(spans).to(device)
        start = int(shard.slot_start)
        self.current = slice(start, start + rows)
        angle = torch.rand(config.attended, dim // 2, device=device) * 6.28
        self.cos, self.sin = angle.cos(), angle.sin()
        attended = -(-config.attended // 16) * 16
        self.attended = attended
        self.ranges = torch.tensor(
            [[0, config.attended], [0, 0], [0, 0]], dtype=torch.int32, device=device
        )
        self.workspace = AttentionWorkspace.for_queries(shard.rings[0].q)
        self.residual = torch.randn(rows, config.hidden, **bf16)
        self.peers = [torch.randn(rows, config.hidden, **bf16) for _ in range(shard.tp - 1)]
        self.reduced = [torch.zeros(rows, config.hidden, **bf16) for _ in range(shard.tp)]

    def upkeep(self, layer: int) -> QueryKeyValue:
        """Gather, rotate and quantize a layer's whole window."""
        k = rotate(self.keys[layer][:, self.slots].float(), self.cos, self.sin)
        k8, k_scale = quantize(F.pad(k, (0, 0, 0, self.attended - k.shape[1])))
        v = self.values[layer][:, self.slots]
        v8, v_scale = quantize(F.pad(v, (0, 0, 0, self.attended - v.shape[1])))
        ring = self.shard.rings[layer]
        return QueryKeyValue(
            ring.q, k8, v8.transpose(1, 2).contiguous(), ring.q_scale, k_scale, v_scale
        )


def baseline_layer(state: Baseline, step: int, layer: int) -> None:
    """Run one layer of one pass."""
    shard = state.shard
    weights = shard.layers[layer]
    this = shard.modulation[step, layer]
    x, x_scale = _normed(state, this[0], this[1])
    qkv = fp8_linear(x, x_scale, *weights.qkv)
    q, k, v = qkv.float().view(shard.tokens, 3, shard.heads, shard.dim).permute(1, 2, 0, 3)
    q = rotate(rms_norm(q, weights.q_norm, 1e-6), shard.cos, shard.sin)
    state.keys[layer][:, state.current] = rms_norm(k, weights.k_norm, 1e-6).bfloat16()
    state.values[layer][:, state.current] = v.bfloat16()
    cache = state.upkeep(layer)
    assert cache.q_scale is not None
    cache.q.copy_((q / cache.q_scale).clamp(-FP8_MAX, FP8_MAX).to(FP8))
    tokens = window_attention(cache, state.ranges, out=shard.attended, workspace=state.workspace)
    assert tokens[1] is not None
    partial = fp8_linear(tokens[0], tokens[1], *weights.out)
    _reduce(state, partial, this[2] / weights.out[1])
    x, x_scale = _normed(state, this[3], this[4])
    gate, up = fp8_linear(x, x_scale, *weights.gate_up).chunk(2, -1)
    h, h_scale = quantize(F.silu(gate) * up)
    partial = fp8_linear(h, h_scale, *weights.down)
    _reduce(state, partial, this[5] / weights.down[1])


def _normed(state: Baseline, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    x = F.layer_norm(state.residual.float(), state.residual.shape[1:], eps=1e-6)
    return quantize(x * (1 + scale) + shift)


def _reduce(state: Baseline, partial: Tensor, gate: Tensor) -> None:
    """Two-shot all-reduce: sum the rows this rank owns in FP32, hand them to all ranks."""
    tables = state.shard.tables["out"]
    rows = slice(*tables.owned)
    total = partial[rows].float()
    for peer in state.peers:
        total = total + peer[rows].float()
    for peer in state.reduced:
        peer[rows] = total.bfloat16()
    state.residual.add_((state.reduced[0] * gate).bfloat16())


def baseline_step(state: Baseline) -> None:
    """Run all layers of all passes."""
    for step in range(len(state.shard.config.sigmas)):
        for layer in range(state.shard.num_layers):
            baseline_layer(state, step, layer)
