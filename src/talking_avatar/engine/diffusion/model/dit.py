"""The whole DiT: a noisy latent and its conditions in, a prediction out.

Takes: one chunk at one noise level, and a view of the cache. Gives: what the configuration
predicts, velocity or x0, in FP32. Never: loops over passes, or decides a slot or a position.

Its parameters are named as in `layout`. With a `Comm` of more than one rank, each rank has its
part of the layers' matrices, everything else whole; activations are equal bits on all ranks.

Legend: T tokens, C hidden, P numbers of a patch; latent [channels, h, w].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.cache.kv import KVCache
from talking_avatar.engine.diffusion.cache.ring import SlotRange
from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.model.attention import (
    Attend,
    CrossAttention,
    SelfAttention,
    TextKV,
)
from talking_avatar.engine.diffusion.model.embeddings import (
    MLP,
    Dense,
    modulate,
    patchify,
    sinusoid,
    unpatchify,
)
from talking_avatar.engine.diffusion.model.feed_forward import FeedForward, gelu
from talking_avatar.engine.diffusion.model.rope import RopeTable, Rotation
from talking_avatar.engine.diffusion.ranks.comm import Comm
from talking_avatar.engine.diffusion.ranks.linear import parameter


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What stays the same for all chunks of a stream, on one rank.

    Attributes:
        photo: The photo's features as tokens [T, C], added to every patch; None without.
        text: Per layer, the text's keys and values; empty without.
    """

    photo: Tensor | None = None
    text: tuple[TextKV, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CacheView:
    """One chunk's way into the cache: where it writes and what it sees."""

    cache: KVCache
    write: SlotRange
    seen: Sequence[SlotRange]

    def attend(self, layer: int) -> Attend:
        """Give the layer's `Attend`."""

        def write_and_attend(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
            self.cache.write(layer, self.write, k_THD, v_THD)
            return self.cache.attend(layer, q_THD, self.seen)

        return write_and_attend


class Norm(nn.Module):
    """Layer norm with weights, FP32 inside; keeps the type."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = parameter(width)
        self.bias = parameter(width)
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        y = F.layer_norm(x.float(), x.shape[-1:], self.weight.float(), self.bias.float(), self._eps)
        return y.to(x.dtype)


class Layer(nn.Module):
    """Attention over the cache, over the text where there is one, then feed-forward."""

    def __init__(
        self, config: AvatarDiTConfig, comm: Comm, precision: Precision, index: int
    ) -> None:
        super().__init__()
        where = f"layers.{index}"
        self._eps = config.eps
        self.table = parameter(6, config.hidden)
        self.attention = SelfAttention(config, comm, precision, f"{where}.attention")
        self.cross: CrossAttention | None = None
        if config.text_channels:
            self.cross_norm = Norm(config.hidden, config.eps)
            self.cross = CrossAttention(config, comm, precision, f"{where}.cross")
        self.feed_forward = FeedForward(config, comm, precision, f"{where}.feed_forward")

    def forward(
        self,
        x_TC: Tensor,
        modulation_6C: Tensor,
        rotation: Rotation,
        attend: Attend,
        text: TextKV | None,
    ) -> Tensor:
        """Give the residual stream after this layer."""
        shift, scale, gate, ff_shift, ff_scale, ff_gate = self.table + modulation_6C
        normed_TC = modulate(x_TC, shift, scale, self._eps)
        x_TC = _add(x_TC, gate * self.attention(normed_TC, rotation, attend))
        if self.cross is not None:
            x_TC = _add(x_TC, self.cross(self.cross_norm(x_TC), text))
        normed_TC = modulate(x_TC, ff_shift, ff_scale, self._eps)
        return _add(x_TC, ff_gate * self.feed_forward(normed_TC))


class DiT(nn.Module):
    """One rank's part of the model."""

    def __init__(
        self,
        config: AvatarDiTConfig,
        comm: Comm,
        *,
        precision: Precision = "fp32",
        dense: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate it, unfilled.

        Args:
            config: The model.
            comm: This rank's.
            precision: Of the layers' matrices.
            dense: Type of everything else's weights and of the residual stream.
            device: Where all of it lives; also where its inputs are made.
        """
        super().__init__()
        self.config = config
        self.rope = RopeTable(config, device)
        self._device = torch.device(device)
        self._dense = dense
        with self._device:
            self._make_embeddings(config)
            self.layers = nn.ModuleList(
                Layer(config, comm, precision, index) for index in range(config.num_layers)
            )

    def _make_embeddings(self, config: AvatarDiTConfig) -> None:
        hidden, speech, dense = config.hidden, config.speech, self._dense
        self.patch_embedding = Dense(config.patch_channels, hidden)
        if config.photo_channels:
            self.photo_embedding = Dense(config.photo_channels, hidden)
        if config.num_registers:
            self.registers = parameter(config.num_registers, hidden)
        if config.num_speech_tokens:
            self.speech_net = MLP(speech.inputs, speech.hidden, speech.features, F.silu)
            self.speech_embedding = Dense(speech.features, hidden)
        if config.num_control_tokens:
            self.control_embedding = Dense(config.num_controls, hidden)
        if config.num_conditioning:
            self.conditioning_table = parameter(config.num_conditioning, hidden)
        self.time_embedding = MLP(config.time_channels, hidden, hidden, F.silu)
        self.modulation = Dense(hidden, 6 * hidden)
        if config.text_channels:
            self.text_embedding = MLP(config.text_channels, hidden, hidden, gelu)
        self.output_table = parameter(2, hidden)
        self.output = Dense(hidden, config.patch_channels)
        for module in self.modules():
            if isinstance(module, Dense):
                module.to(dense)

    def begin(
        self,
        cache: KVCache,
        photo_latent: Tensor,
        *,
        photo_features: Tensor | None = None,
        text_NE: Tensor | None = None,
    ) -> Scene:
        """Write the sink into a new stream's cache.

        Args:
            cache: The stream's, on this rank.
            photo_latent: [channels, h, w], normalized as the model wants it.
            photo_features: [photo_channels, rows, columns], where the model has them.
            text_NE: Encoded text [num_text_tokens, text_channels], where the model has it.

        Returns:
            What later chunks need beside the cache.

        Raises:
            ValueError: The model has photo features or text and none are given, or the reverse.
        """
        config = self.config
        _check_given("photo_features", photo_features, config.photo_channels)
        _check_given("text_NE", text_NE, config.text_channels)
        photo_TC = None
        if photo_features is not None:
            photo_TC = self.photo_embedding(photo_features.flatten(1).T)
        scene = Scene(photo_TC, self._read(text_NE))
        x_TC = self._patches(photo_latent, scene)
        if config.num_registers:
            x_TC = torch.cat([x_TC, self.registers.to(x_TC.dtype)])
        sink = SlotRange(0, config.num_sink)
        self._run(x_TC, 0.0, scene, self.rope.sink(), CacheView(cache, sink, [sink]))
        return scene

    def condition(self, speech_SF: Tensor, controls_N: Tensor) -> Tensor:
        """Make a chunk's conditioning tokens; the same for all its passes.

        Args:
            speech_SF: [num_speech_tokens, speech.inputs].
            controls_N: [num_controls].

        Returns:
            [num_conditioning, hidden].
        """
        tokens = []
        if self.config.num_speech_tokens:
            tokens.append(self.speech_embedding(self.speech_net(speech_SF)))
        if self.config.num_control_tokens:
            tokens.append(self.control_embedding(controls_N.unsqueeze(0)))
        if not tokens:
            return torch.empty(0, self.config.hidden, dtype=self._dense, device=self._device)
        return (torch.cat(tokens) + self.conditioning_table).to(self._dense)

    def forward(
        self,
        noisy_Chw: Tensor,
        sigma: float,
        scene: Scene,
        conditioning_TC: Tensor,
        rotation: Rotation,
        view: CacheView,
    ) -> Tensor:
        """Predict from one noisy latent frame.

        Args:
            noisy_Chw: FP32, at noise level ``sigma``.
            sigma: 1 is pure noise.
            scene: From `begin`.
            conditioning_TC: From `condition`.
            rotation: The chunk's positions, from ``rope.chunk``.
            view: Where it writes and what it sees.

        Returns:
            The prediction, FP32, of the latent's shape; equal bits on every rank.
        """
        patches_TC = self._patches(noisy_Chw, scene)
        x_TC = torch.cat([patches_TC, conditioning_TC])
        x_TC, time_C = self._run(x_TC, sigma, scene, rotation, view)
        shift, scale = self.output_table + time_C
        x_TC = modulate(x_TC[: len(patches_TC)], shift, scale, self.config.eps)
        return unpatchify(self.output(x_TC).float(), self.config.patch, self.config.latent_size)

    def _patches(self, latent_Chw: Tensor, scene: Scene) -> Tensor:
        x_TC: Tensor = self.patch_embedding(patchify(latent_Chw, self.config.patch))
        return x_TC if scene.photo is None else x_TC + scene.photo

    def _read(self, text_NE: Tensor | None) -> tuple[TextKV, ...]:
        if not self.config.text_channels:
            return ()
        text_NC = self.text_embedding(text_NE)
        cross = [layer.cross for layer in self.layers]
        return tuple(c.read(text_NC) for c in cross if isinstance(c, CrossAttention))

    def _run(
        self, x_TC: Tensor, sigma: float, scene: Scene, rotation: Rotation, view: CacheView
    ) -> tuple[Tensor, Tensor]:
        """Give the residual stream after all layers, and the time embedding."""
        config = self.config
        wave = sinusoid(sigma, config.time_channels, self._device)
        time_C = self.time_embedding(wave).float()
        modulation_6C = self.modulation(F.silu(time_C)).float().view(6, config.hidden)
        for index, layer in enumerate(self.layers):
            text = scene.text[index] if scene.text else None
            x_TC = layer(x_TC, modulation_6C, rotation, view.attend(index), text)
        return x_TC, time_C


def _check_given(name: str, given: Tensor | None, channels: int) -> None:
    if (given is not None) != bool(channels):
        raise ValueError(
            f"{name} is {'missing' if given is None else 'given'}, but the model has {channels} "
            "channels for it"
        )


def _add(x_TC: Tensor, update_TC: Tensor) -> Tensor:
    """Add in FP32, round once."""
    return (x_TC.float() + update_TC).to(x_TC.dtype)
