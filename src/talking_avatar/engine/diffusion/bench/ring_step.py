"""The step as this engine runs it: cache written once, scales folded into whatever reads next."""

from __future__ import annotations

import torch

from talking_avatar.engine.diffusion.bench.shard import Shard
from talking_avatar.engine.diffusion.kernels import (
    QueryKeyValue,
    fp8_matmul,
    reduce_modulate_quantize,
    swiglu_quantize,
    window_attention,
    write_qkv,
)
from talking_avatar.engine.diffusion.kernels.formats import dequantize
from talking_avatar.engine.diffusion.kernels.fp8_linear import reference_fp8_matmul
from talking_avatar.engine.diffusion.kernels.numerics import calc_diff
from talking_avatar.engine.diffusion.kernels.reduce_modulate_quantize import (
    reference_reduce_modulate_quantize,
)
from talking_avatar.engine.diffusion.kernels.swiglu_quantize import reference_swiglu_quantize
from talking_avatar.engine.diffusion.kernels.window_attention import reference_window_attention
from talking_avatar.engine.diffusion.kernels.write_qkv import reference_write_qkv


def ring_layer(shard: Shard, step: int, layer: int, plain: QueryKeyValue | None = None) -> None:
    """Run one layer of one pass: ten launches.

    Args:
        shard: The rank.
        step: Index of the pass.
        layer: Index of the layer.
        plain: Where queries, keys and values go instead of the ring.
    """
    weights, ring = shard.layers[layer], shard.rings[layer]
    after_out, after_down = shard.modulations(step, layer)
    x, x_scale = shard.inputs[0]
    fp8_matmul(x, weights.qkv[0], out=shard.raw_qkv)
    where, start = (ring, shard.slot_start) if plain is None else (plain, shard.no_slot)
    write_qkv(
        shard.raw_qkv, x_scale, weights.qkv[1], weights.q_norm, weights.k_norm,
        shard.cos, shard.sin, start, where,
    )  # fmt: skip
    window_attention(ring, shard.ranges, out=shard.attended, workspace=shard.workspace)
    tables = shard.tables["out"]
    fp8_matmul(shard.attended[0], weights.out[0], out=tables.partials[0])
    reduce_modulate_quantize(tables, shard.residual, after_out)
    fp8_matmul(x, weights.gate_up[0], out=shard.raw_gate_up)
    swiglu_quantize(shard.raw_gate_up, x_scale, weights.gate_up[1], out=shard.expanded)
    tables = shard.tables["down"]
    fp8_matmul(shard.expanded[0], weights.down[0], out=tables.partials[0])
    reduce_modulate_quantize(tables, shard.residual, after_down)


def ring_step(shard: Shard) -> None:
    """Run all layers of all passes."""
    for step in range(len(shard.config.sigmas)):
        for layer in range(shard.num_layers):
            ring_layer(shard, step, layer)


def plain_step(shard: Shard, plain: QueryKeyValue) -> None:
    """Run the step with queries, keys and values stored plainly: what upkeep is compared with.

    Args:
        shard: The rank; its ring keeps what it held.
        plain: BF16 buffers as long as one chunk, the same for every layer.
    """
    for step in range(len(shard.config.sigmas)):
        for layer in range(shard.num_layers):
            ring_layer(shard, step, layer, plain)


def layer_error(shard: Shard, layer: int = 0) -> float:
    """Run one layer by kernels and by references from the same state; return `calc_diff`.

    Compared are the FP8 rows that the layer hands on, after four products, attention, SwiGLU and
    two reductions, each rounded on the way.
    """
    rows = slice(*shard.tables["down"].owned)
    x, x_scale = shard.inputs[0]
    before = x.clone(), x_scale.clone(), shard.residual.clone()
    ring_layer(shard, 0, layer)
    torch.cuda.synchronize()
    fast = dequantize(x, x_scale)[rows]
    for tensor, value in zip((x, x_scale, shard.residual), before, strict=True):
        tensor.copy_(value)
    _reference_layer(shard, layer)
    return calc_diff(fast, dequantize(x, x_scale)[rows])


def _reference_layer(shard: Shard, layer: int) -> None:
    weights, ring = shard.layers[layer], shard.rings[layer]
    after_out, after_down = shard.modulations(0, layer)
    x, x_scale = shard.inputs[0]
    raw = reference_fp8_matmul(x, weights.qkv[0])
    reference_write_qkv(
        raw, x_scale, weights.qkv[1], weights.q_norm, weights.k_norm,
        shard.cos, shard.sin, shard.slot_start, ring, 1e-6,
    )  # fmt: skip
    tokens, scale = reference_window_attention(ring, shard.ranges)
    assert scale is not None
    for name, (values, scales), weight, modulation in (
        ("out", (tokens, scale), weights.out, after_out),
        ("down", (tokens, scale), weights.down, after_down),
    ):
        if name == "down":
            raw = reference_fp8_matmul(x, weights.gate_up[0])
            values, scales = reference_swiglu_quantize(raw, x_scale, weights.gate_up[1])
        tables = shard.tables[name]
        tables.partials[0].copy_(reference_fp8_matmul(values, weight[0]))
        tables.row_scales[0].copy_(scales)
        reference_reduce_modulate_quantize(tables, shard.residual, modulation, 1e-6)
