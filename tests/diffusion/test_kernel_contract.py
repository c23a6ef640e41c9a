"""One layer through the kernels' ops, against the same layer as the model computes it.

The ops run their references here; each has its own test against its kernel. What this holds is
that their contracts and the model's mean the same: order of columns, of rotary pairs, of slots,
which scale belongs to what. Both are FP8, but the ops also round queries, attention's output and
raw products, so they may differ by the size of FP8's own error, and by no more.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from talking_avatar.engine.diffusion.cache.kv import KVCache, KVShape
from talking_avatar.engine.diffusion.cache.ring import RingShape, SlotRange
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import (
    QueryKeyValue,
    fp8_linear,
    fp8_matmul,
    modulate_norm_quantize,
    swiglu_quantize,
    window_attention,
    write_qkv,
)
from talking_avatar.engine.diffusion.kernels.write_qkv import query_scale
from talking_avatar.engine.diffusion.model.dit import CacheView, DiT, Layer
from talking_avatar.engine.diffusion.model.rope import RopeTable, Rotation
from talking_avatar.engine.diffusion.ranks.comm import LocalComm
from talking_avatar.engine.diffusion.weights.checkpoint import random_weights
from talking_avatar.engine.diffusion.weights.rank_part import fill_rank


@pytest.fixture(scope="module")
def config(tiny: AvatarDiTConfig) -> AvatarDiTConfig:
    return replace(tiny, hidden=256, num_heads=4, head_dim=64, rope_dims=(16, 24, 24), ffn=512)


def filled_cache(config: AvatarDiTConfig) -> KVCache:
    """Give a cache whose every slot holds something."""
    ring = RingShape.of(config)
    shape = KVShape(num_layers=1, num_heads=config.num_heads, head_dim=config.head_dim, ring=ring)
    cache = KVCache(shape, "fp8")
    draw = torch.Generator().manual_seed(9)
    k, v = torch.randn(2, ring.stored, config.num_heads, config.head_dim, generator=draw)
    cache.write(0, SlotRange(0, ring.stored), k, v)
    return cache


def by_ops(
    layer: Layer, x: Tensor, modulation: Tensor, rotation: Rotation, view: CacheView
) -> Tensor:
    """Do the layer's work with the ops alone."""
    shift, scale, gate, ff_shift, ff_scale, ff_gate = layer.table + modulation
    attention, feed_forward, cache = layer.attention, layer.feed_forward, view.cache
    h8, h_scale = modulate_norm_quantize(x, shift, scale)
    heads, dim = cache.shape.num_heads, cache.shape.head_dim
    qkv = QueryKeyValue(
        q=torch.zeros(heads, len(x), dim, dtype=torch.float8_e4m3fn),
        k=cache.k_LHSD[0],
        v=cache.v_LHDS[0],
        q_scale=query_scale(attention.q_norm.weight),
        k_scale=cache.k_scale_LHS[0],
        v_scale=cache.v_scale_LHS[0],
    )
    write_qkv(
        fp8_matmul(h8, attention.qkv.weight),
        h_scale,
        attention.qkv.weight_scale,
        attention.q_norm.weight,
        attention.k_norm.weight,
        rotation.cos,
        rotation.sin,
        torch.tensor(view.write.start, dtype=torch.int32),
        qkv,
    )
    ranges = torch.tensor([tuple(r) for r in view.seen], dtype=torch.int32)
    seen8, seen_scale = window_attention(qkv, ranges)
    assert seen_scale is not None
    out = fp8_linear(seen8, seen_scale, attention.out.weight, attention.out.weight_scale)
    x = x + gate * out.float()
    h8, h_scale = modulate_norm_quantize(x, ff_shift, ff_scale)
    raw = fp8_matmul(h8, feed_forward.expand.weight)
    f8, f_scale = swiglu_quantize(raw, h_scale, feed_forward.expand.weight_scale)
    down = fp8_linear(f8, f_scale, feed_forward.down.weight, feed_forward.down.weight_scale)
    return x + ff_gate * down.float()


def test_a_layer_of_ops_is_the_models_layer(config: AvatarDiTConfig) -> None:
    model = DiT(config, LocalComm(), precision="fp8")
    fill_rank(dict(model.named_parameters()), random_weights(config, 2))
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(config.chunk_tokens, config.hidden, generator=draw)
    modulation = 0.5 * torch.randn(6, config.hidden, generator=draw)
    rotation = RopeTable(config).chunk(17)
    ours, theirs = filled_cache(config), filled_cache(config)
    ring = ours.shape.ring
    seen = (ring.sink, SlotRange(ring.place(0).start, ring.place(2).stop), ring.place(7))
    write = ring.place(1)
    expected = layer(x, modulation, rotation, CacheView(ours, write, seen).attend(0), None)
    found = by_ops(layer, x, modulation, rotation, CacheView(theirs, write, seen))
    error = (found - expected).norm() / (expected - x).norm()
    assert error < 0.06, error
    for read in (KVCache.keys, KVCache.values):
        a, b = read(theirs, 0, write), read(ours, 0, write)
        assert (a - b).norm() / b.norm() < 0.02, "BF16 products move a few values by one FP8 step"
        untouched = SlotRange(ring.place(2).start, ring.stored)
        assert torch.equal(read(theirs, 0, untouched), read(ours, 0, untouched))
