"""What keeping the cache costs a step: ours, written once, against a window redone at each call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from talking_avatar.engine.diffusion.bench.baseline_step import Baseline
from talking_avatar.engine.diffusion.bench.report import Row
from talking_avatar.engine.diffusion.bench.shard import Shard
from talking_avatar.engine.diffusion.bench.step import plain_buffers
from talking_avatar.engine.diffusion.bench.timing import per_call_us
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.kernels import QueryKeyValue, rotate_slots, write_qkv

NUM_LAYERS = 6
"""Layers whose rings one round goes through: 130 MB, twice the L2 of an H200."""


def measure(config: AvatarDiTConfig, tp: int, device: torch.device) -> Iterator[Row]:
    """Time writes, resets and the baseline's upkeep; give each per call and per step."""
    shard = Shard(config, tp, device, NUM_LAYERS)
    calls = config.num_layers * len(config.sigmas)
    written = _write_us(shard, None)
    plain = _write_us(shard, plain_buffers(shard))
    rotated = _reset_us(shard)
    resets_ms = rotated * config.num_layers / config.reset_interval / 1e3
    state = Baseline(shard)
    redone = per_call_us([partial(state.upkeep, layer) for layer in range(NUM_LAYERS)])
    ours = (written - plain) * calls / 1e3 + resets_ms
    yield Row(
        name="QKV epilogue into the FP8 ring",
        numbers={"us": written, "ms_a_step": written * calls / 1e3},
        note="norm, rotary position, FP8, one launch",
    )
    yield Row(
        name="QKV epilogue, stored plainly in BF16",
        numbers={"us": plain, "ms_a_step": plain * calls / 1e3},
        note="norm and rotary position",
    )
    yield Row(
        name="reset of one layer's window and spare keys",
        numbers={"us": rotated, "ms_a_step": resets_ms},
        note=f"every layer, once in {config.reset_interval} steps",
    )
    yield Row(
        name="upkeep, ours",
        numbers={"ms_a_step": ours},
        note="ring epilogue minus plain epilogue, plus resets",
    )
    yield Row(
        name="upkeep, baseline",
        numbers={"us": redone, "ms_a_step": redone * calls / 1e3},
        note="gather, rotate and quantize the window in torch operations, captured",
    )


def _write_us(shard: Shard, plain: QueryKeyValue | None) -> float:
    _, x_scale = shard.inputs[0]
    shard.raw_qkv.normal_(0.0, 5e5)
    start = shard.slot_start if plain is None else shard.no_slot

    def write(layer: int) -> None:
        weights = shard.layers[layer]
        write_qkv(
            shard.raw_qkv, x_scale, weights.qkv[1], weights.q_norm, weights.k_norm,
            shard.cos, shard.sin, start, plain or shard.rings[layer],
        )  # fmt: skip

    return per_call_us([partial(write, layer) for layer in range(shard.num_layers)])


def _reset_us(shard: Shard) -> float:
    config, device = shard.config, shard.device
    angle = torch.rand(config.rope_dims[0] // 2, device=device)
    cos, sin = angle.cos(), angle.sin()
    ranges = torch.tensor(
        [[config.num_sink, config.stored], [0, 0]], dtype=torch.int32, device=device
    )
    return per_call_us(
        [partial(rotate_slots, ring.k, ring.k_scale, cos, sin, ranges) for ring in shard.rings]
    )
