"""The tensors of a model: their names and shapes in a checkpoint, and where a rank keeps its part.

Takes: a configuration. Gives: one `TensorSpec` per checkpoint tensor, in loading order; and how
many heads and columns a rank holds. Never: imports torch, or holds a tensor.

Names in a checkpoint (``-> parameter`` where the rank's module names it otherwise):

    patch_embedding.weight       [hidden, C * p * p]   input order (channel, row, column)
    patch_embedding.bias         [hidden]
    photo_embedding.weight       [hidden, photo_channels]     only with photo_channels
    photo_embedding.bias         [hidden]
    registers                    [num_registers, hidden]      only with registers
    speech_net.hidden.weight     [speech.hidden, speech.inputs]   .bias    only with speech tokens
    speech_net.output.weight     [speech.features, speech.hidden] .bias
    speech_embedding.weight      [hidden, speech.features]        .bias
    control_embedding.weight     [hidden, num_controls]           .bias    only with control tokens
    conditioning_table           [num_conditioning, hidden]
    time_embedding.hidden.weight [hidden, time_channels]  .bias
    time_embedding.output.weight [hidden, hidden]         .bias
    modulation.weight            [6 * hidden, hidden]     .bias   shared by all layers
    text_embedding.hidden.weight [hidden, text_channels]  .bias   only with text
    text_embedding.output.weight [hidden, hidden]         .bias
    layers.N.table               [6, hidden]   added to the shared modulation; rows: shift, scale,
                                               gate of attention, then of feed-forward
    layers.N.attention.q.weight  [inner, hidden]   -> attention.qkv.weight, part 0   (.bias)
    layers.N.attention.k.weight  [inner, hidden]   -> attention.qkv.weight, part 1   (.bias)
    layers.N.attention.v.weight  [inner, hidden]   -> attention.qkv.weight, part 2   (.bias)
    layers.N.attention.q_norm.weight  [head_dim], or [inner] where qk_norm is "inner"; k_norm alike
    layers.N.attention.out.weight     [hidden, inner]   (.bias)
    layers.N.cross_norm.weight   [hidden]   .bias                 only with text, as what follows
    layers.N.cross.q.weight      [inner, hidden]   .bias
    layers.N.cross.k.weight      [inner, hidden]   -> cross.kv.weight, part 0        .bias
    layers.N.cross.v.weight      [inner, hidden]   -> cross.kv.weight, part 1        .bias
    layers.N.cross.q_norm.weight, k_norm.weight   [inner]
    layers.N.cross.out.weight    [hidden, inner]   .bias
    layers.N.feed_forward.gate.weight  [ffn, hidden] -> feed_forward.expand.weight, part 0  swiglu
    layers.N.feed_forward.up.weight    [ffn, hidden] -> feed_forward.expand.weight, last part
    layers.N.feed_forward.down.weight  [hidden, ffn]
    output_table                 [2, hidden]   shift, scale; added to the time embedding
    output.weight                [C * p * p, hidden]   .bias   output order (channel, row, column)

Tensor parallelism splits rows of q, k, v, gate and up, and columns of out and down, by whole heads
and by groups of `FFN_UNIT` columns. Where they do not divide, zero heads and zero columns are
added at the end: exact, since a zero head contributes zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from talking_avatar.engine.diffusion.config import AvatarDiTConfig

FFN_UNIT = 16
"""Columns of a feed-forward shard are a multiple of this: FP8 tensor cores take K by 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a checkpoint.

    Attributes:
        name: In the checkpoint.
        shape: Whole, as in the checkpoint.
        parameter: Name in a rank's module.
        part, num_parts: Its place among the tensors that the parameter holds, stacked by rows.
        split: What tensor parallelism divides: ``"rows"`` (first dimension), ``"columns"``
            (second), or nothing (None): every rank has it whole.
        padded: Length of the divided dimension with its zeros, over all ranks.
        is_matrix: Whether it is a layer's matrix: those may be FP8, with one scale a row.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    part: int = 0
    num_parts: int = 1
    split: Literal["rows", "columns"] | None = None
    padded: int = 0
    is_matrix: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def part_shape(self, tp: int) -> tuple[int, ...]:
        """Shape of one rank's part of this tensor alone."""
        if self.split == "rows":
            return (self.padded // tp, *self.shape[1:])
        if self.split == "columns":
            return (self.shape[0], self.padded // tp)
        return self.shape

    def parameter_shape(self, tp: int) -> tuple[int, ...]:
        """Shape of the parameter that it is a part of, on one rank."""
        rows, *rest = self.part_shape(tp)
        return (rows * self.num_parts, *rest)


def padded_heads(config: AvatarDiTConfig, tp: int) -> int:
    """Heads over all ranks, zero heads included."""
    return tp * ceil(config.num_heads / tp)


def padded_ffn(config: AvatarDiTConfig, tp: int) -> int:
    """Feed-forward columns over all ranks, zero columns included."""
    return config.ffn if tp == 1 else tp * FFN_UNIT * ceil(config.ffn / (tp * FFN_UNIT))


def tensor_specs(config: AvatarDiTConfig, tp: int = 1) -> Iterator[TensorSpec]:
    """List every tensor of a checkpoint, in the order of the layers.

    Args:
        config: The model.
        tp: Ranks; changes only ``padded``.
    """
    yield from _embeddings(config)
    for index in range(config.num_layers):
        for spec in _layer(config, tp):
            yield replace(
                spec,
                name=f"layers.{index}.{spec.name}",
                parameter=f"layers.{index}.{spec.parameter}",
            )
    yield _whole("output_table", 2, config.hidden)
    yield from _linear("output", config.patch_channels, config.hidden)


def num_parameters(config: AvatarDiTConfig) -> int:
    """Count every number of the checkpoint's DiT, embeddings and modulation included."""
    return sum(spec.numel for spec in tensor_specs(config))


def _whole(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, parameter=name)


def _linear(name: str, num_out: int, num_in: int) -> Iterator[TensorSpec]:
    yield _whole(f"{name}.weight", num_out, num_in)
    yield _whole(f"{name}.bias", num_out)


def _mlp(name: str, num_in: int, hidden: int, num_out: int) -> Iterator[TensorSpec]:
    yield from _linear(f"{name}.hidden", hidden, num_in)
    yield from _linear(f"{name}.output", num_out, hidden)


def _embeddings(config: AvatarDiTConfig) -> Iterator[TensorSpec]:
    hidden, speech = config.hidden, config.speech
    yield from _linear("patch_embedding", hidden, config.patch_channels)
    if config.photo_channels:
        yield from _linear("photo_embedding", hidden, config.photo_channels)
    if config.num_registers:
        yield _whole("registers", config.num_registers, hidden)
    if config.num_speech_tokens:
        yield from _mlp("speech_net", speech.inputs, speech.hidden, speech.features)
        yield from _linear("speech_embedding", hidden, speech.features)
    if config.num_control_tokens:
        yield from _linear("control_embedding", hidden, config.num_controls)
    if config.num_conditioning:
        yield _whole("conditioning_table", config.num_conditioning, hidden)
    yield from _mlp("time_embedding", config.time_channels, hidden, hidden)
    yield from _linear("modulation", 6 * hidden, hidden)
    if config.text_channels:
        yield from _mlp("text_embedding", config.text_channels, hidden, hidden)


def _layer(config: AvatarDiTConfig, tp: int) -> Iterator[TensorSpec]:
    heads = padded_heads(config, tp) * config.head_dim
    ffn = padded_ffn(config, tp)
    bias = config.bias
    yield _whole("table", 6, config.hidden)
    yield from _stacked("attention.qkv", "qkv", config.inner, config.hidden, heads, bias)
    yield from _qk_norms("attention", config, heads)
    yield from _gathering("attention.out", config.hidden, config.inner, heads, bias)
    if config.text_channels:
        yield _whole("cross_norm.weight", config.hidden)
        yield _whole("cross_norm.bias", config.hidden)
        yield from _stacked("cross.q", "q", config.inner, config.hidden, heads, bias)
        yield from _stacked("cross.kv", "kv", config.inner, config.hidden, heads, bias)
        yield from _qk_norms("cross", config, heads)
        yield from _gathering("cross.out", config.hidden, config.inner, heads, bias)
    names = ("gate", "up") if config.activation == "swiglu" else ("up",)
    yield from _stacked("feed_forward.expand", names, config.ffn, config.hidden, ffn, bias)
    yield from _gathering("feed_forward.down", config.hidden, config.ffn, ffn, bias)


def _stacked(
    parameter: str, parts: str | tuple[str, ...], rows: int, columns: int, padded: int, bias: bool
) -> Iterator[TensorSpec]:
    """Matrices that share an input: one parameter, divided by rows within each part."""
    room = parameter.rpartition(".")[0]
    for part, name in enumerate(parts):
        weight = TensorSpec(
            name=f"{room}.{name}.weight",
            shape=(rows, columns),
            parameter=f"{parameter}.weight",
            part=part,
            num_parts=len(parts),
            split="rows",
            padded=padded,
            is_matrix=True,
        )
        yield weight
        if bias:
            yield replace(
                weight,
                name=f"{room}.{name}.bias",
                shape=(rows,),
                parameter=f"{parameter}.bias",
                is_matrix=False,
            )


def _gathering(name: str, rows: int, columns: int, padded: int, bias: bool) -> Iterator[TensorSpec]:
    """A matrix whose input is divided over the ranks; their outputs are added up."""
    yield TensorSpec(
        name=f"{name}.weight",
        shape=(rows, columns),
        parameter=f"{name}.weight",
        split="columns",
        padded=padded,
        is_matrix=True,
    )
    if bias:
        yield _whole(f"{name}.bias", rows)


def _qk_norms(room: str, config: AvatarDiTConfig, heads: int) -> Iterator[TensorSpec]:
    for name in (f"{room}.q_norm.weight", f"{room}.k_norm.weight"):
        if config.qk_norm == "head":
            yield _whole(name, config.head_dim)
        else:
            yield TensorSpec(
                name=name, shape=(config.inner,), parameter=name, split="rows", padded=heads
            )
