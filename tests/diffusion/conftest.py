"""Small models on random weights, and a runner that denoises chunk after chunk on any ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from talking_avatar.engine.diffusion.cache.ring import Ring, RingShape
from talking_avatar.engine.diffusion.conditioning.photo import PhotoCondition
from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision, named_config
from talking_avatar.engine.diffusion.denoise import ChunkWork, Denoiser, draw_noise
from talking_avatar.engine.diffusion.model.dit import DiT
from talking_avatar.engine.diffusion.ranks.comm import Comm
from talking_avatar.engine.diffusion.ranks.group import RankGroup
from talking_avatar.engine.diffusion.weights.checkpoint import Weights, random_weights
from talking_avatar.engine.diffusion.weights.rank_part import fill_rank


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two cores are shared with other tests."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> AvatarDiTConfig:
    return named_config("tiny")


@pytest.fixture(scope="session")
def tiny_wan() -> AvatarDiTConfig:
    """Wan2.2's arrangement at a width that a test can afford."""
    return replace(
        named_config("wan2.2-ti2v-5b"),
        name="tiny-wan",
        width=128,
        height=192,
        latent_channels=8,
        hidden=96,
        num_heads=4,
        head_dim=24,
        num_layers=2,
        ffn=160,
        text_channels=20,
        num_text_tokens=6,
        time_channels=32,
        rope_dims=(8, 8, 8),
        num_sink=24,
        codec=named_config("tiny").codec,
    )


def filled_model(
    weights: Weights, comm: Comm, precision: Precision = "fp32", device: str = "cpu"
) -> DiT:
    """Build one rank's model on its weights."""
    is_fp32 = precision == "fp32" or device == "cpu"
    dense = torch.float32 if is_fp32 else torch.bfloat16
    model = DiT(weights.config, comm, precision=precision, dense=dense, device=device)
    parameters = dict(model.named_parameters())
    fill_rank(parameters, weights, rank=comm.rank, num_ranks=comm.world_size)
    return model


def some_photo(config: AvatarDiTConfig, seed: int = 0) -> PhotoCondition:
    draw = torch.Generator().manual_seed(seed)
    text = None
    if config.text_channels:
        text = torch.randn(config.num_text_tokens, config.text_channels, generator=draw)
    features = None
    if config.photo_channels:
        features = torch.randn(config.photo_channels, *config.grid, generator=draw)
    latent = torch.randn(config.latent_channels, *config.latent_size, generator=draw)
    return PhotoCondition(latent, features, text)


@dataclass
class Run:
    """One stream on a group of ranks, driven directly, without the engine."""

    config: AvatarDiTConfig
    group: RankGroup
    precision: Precision = "fp32"
    kv_precision: Precision = "fp32"
    ring_shape: RingShape | None = None
    weights: Weights | None = None
    device: str = "cpu"
    latents_by_rank: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = self.ring_shape or RingShape.of(self.config, rewind_chunks=6)
        self.ring = Ring.empty(shape)
        weights = self.weights or random_weights(self.config)
        self.photo = photo = some_photo(self.config)

        def begin(comm: Comm) -> Denoiser:
            return Denoiser(
                filled_model(weights, comm, self.precision, self.device),
                shape,
                photo,
                num_ranks=comm.world_size,
                kv_precision=self.kv_precision,
                device=self.device,
            )

        self.denoisers = self.group.run(begin)

    def chunk(self) -> Tensor:
        """Denoise the next chunk; its conditions depend on its index alone."""
        self.ring, slots = self.ring.advance()
        draw = torch.Generator().manual_seed(slots.chunk)
        work = ChunkWork(
            slots=slots,
            speech=torch.randn(
                self.config.num_speech_tokens, self.config.speech.inputs, generator=draw
            ),
            controls=torch.randn(self.config.num_controls, generator=draw),
            noise=draw_noise(self.config, 5, slots.chunk),
        )
        self.latents_by_rank = self.group.run(lambda comm: self.denoisers[comm.rank].run(work))
        return self.latents_by_rank[0]


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Give a function that starts a `Run`: ``start(config, tp=1, **options)``."""
    groups: list[RankGroup] = []

    def begin(config: AvatarDiTConfig, tp: int = 1, **options: object) -> Run:
        groups.append(RankGroup(tp))
        return Run(config, groups[-1], **options)  # type: ignore[arg-type]

    yield begin
    for group in groups:
        group.close()
