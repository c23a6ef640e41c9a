"""One rank's work on one stream: the sink once, then chunk after chunk.

Takes: the photo, then per chunk its slots, conditions and noise. Gives: the clean latent.
Never: decides what to make or when; all ranks of a stream do the same at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talking_avatar.engine.diffusion.cache.kv import KVCache, KVShape
from talking_avatar.engine.diffusion.cache.ring import ChunkSlots, RingShape
from talking_avatar.engine.diffusion.conditioning.photo import PhotoCondition
from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.layout import padded_heads
from talking_avatar.engine.diffusion.model.dit import CacheView, DiT
from talking_avatar.engine.diffusion.model.noise import chunk_noise
from talking_avatar.engine.diffusion.model.sampler import Sampler


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChunkWork:
    """One chunk, as every rank gets it.

    Attributes:
        slots: Where it lives; from `Ring.advance`.
        speech: [num_speech_tokens, speech.inputs], FP32 on the CPU.
        controls: [num_controls], FP32 on the CPU.
        noise: Standard normal [draws, channels, h, w], FP32 on the CPU; from `draw_noise`. Made
            once and not by every rank: at full size it takes 15 ms a pass of one core.
    """

    slots: ChunkSlots
    speech: Tensor
    controls: Tensor
    noise: Tensor


def draw_noise(config: AvatarDiTConfig, seed: int, chunk: int) -> Tensor:
    """Draw all noise of one chunk: [draws, channels, h, w], a draw per pass that takes one."""
    shape = (config.latent_channels, *config.latent_size)
    draws = range(Sampler.of(config).num_draws)
    return torch.stack([chunk_noise(seed, chunk, index, shape) for index in draws])


class Denoiser:
    """One stream on one rank: its cache, and the model that fills it."""

    def __init__(
        self,
        model: DiT,
        ring: RingShape,
        photo: PhotoCondition,
        *,
        num_ranks: int,
        kv_precision: Precision,
        device: torch.device | str,
    ) -> None:
        """Allocate the cache and write the sink.

        Args:
            model: This rank's.
            ring: Sizes of the cache.
            photo: What the sink shows.
            num_ranks: Ranks that share the heads.
            kv_precision: Of the cache.
            device: This rank's.
        """
        config = model.config
        self._model = model
        self._device = torch.device(device)
        self._sampler = Sampler.of(config)
        shape = KVShape(
            num_layers=config.num_layers,
            num_heads=padded_heads(config, num_ranks) // num_ranks,
            head_dim=config.head_dim,
            ring=ring,
        )
        self._cache = KVCache(shape, kv_precision, device)
        self._scene = model.begin(
            self._cache,
            photo.latent.to(device),
            photo_features=_to(photo.features, device),
            text_NE=_to(photo.text, device),
        )

    @property
    def cache(self) -> KVCache:
        """The stream's keys and values on this rank."""
        return self._cache

    def run(self, work: ChunkWork) -> Tensor:
        """Denoise one chunk; its keys and values of the last pass stay in the cache.

        Args:
            work: The chunk.

        Returns:
            The clean latent [channels, h, w], FP32; equal bits on every rank.
        """
        model, slots, sampler = self._model, work.slots, self._sampler
        ring = self._cache.shape.ring
        if slots.lowered:
            self._cache.turn_back(ring.ring, model.rope.shift(-slots.lowered))
        view = CacheView(self._cache, slots.write, (ring.sink, *slots.attended))
        rotation = model.rope.chunk(slots.position)
        conditioning_TC = model.condition(
            work.speech.to(self._device), work.controls.to(self._device)
        )
        noise = work.noise.to(self._device)
        noisy = sampler.start(noise[0])
        for index, sigma in enumerate(sampler.sigmas):
            predicted = model(noisy, sigma, self._scene, conditioning_TC, rotation, view)
            x0: Tensor = sampler.x0(noisy, predicted, index)
            if index + 1 < len(sampler.sigmas):
                fresh = noise[index + 1] if len(noise) > 1 else None
                noisy = sampler.next(noisy, x0, index, fresh)
        return x0


def _to(tensor: Tensor | None, device: torch.device | str) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
