"""The model against the layout, and against a plain forward that has no cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config
from talking_avatar.engine.diffusion.layout import num_parameters, tensor_specs
from talking_avatar.engine.diffusion.model.dit import DiT
from talking_avatar.engine.diffusion.model.embeddings import patchify, unpatchify
from talking_avatar.engine.diffusion.model.noise import chunk_noise
from talking_avatar.engine.diffusion.model.rope import RopeTable, Rotation, rotate
from talking_avatar.engine.diffusion.ranks.comm import LocalComm
from talking_avatar.engine.diffusion.weights.checkpoint import random_weights

SIZES = ("tiny", "tiny_wan", "avatar-small")


@pytest.fixture(params=SIZES)
def config(request: pytest.FixtureRequest) -> AvatarDiTConfig:
    name: str = request.param
    found: AvatarDiTConfig = (
        named_config(name) if name in ("tiny", "avatar-small") else request.getfixturevalue(name)
    )
    return found


def test_parameters_are_those_of_the_layout(config: AvatarDiTConfig) -> None:
    model = DiT(config, LocalComm(), device="meta")
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {spec.parameter: spec.parameter_shape(1) for spec in tensor_specs(config)}
    assert sum(p.numel() for p in model.parameters()) == num_parameters(config)


@pytest.mark.parametrize("name", ["avatar-57b", "avatar-5b", "wan2.2-ti2v-5b"])
def test_large_models_are_built_without_memory(name: str) -> None:
    config = named_config(name)
    model = DiT(config, LocalComm(), device="meta", precision="bf16", dense=torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) == num_parameters(config)


def test_patches_come_back() -> None:
    latent = torch.randn(3, 6, 4)
    tokens = patchify(latent, 2)
    assert tokens.shape == (6, 12)
    assert torch.equal(tokens[1], latent[:, 0:2, 2:4].flatten()), "channel, row, column"
    assert torch.equal(unpatchify(tokens, 2, (6, 4)), latent)


def test_rotation_keeps_relative_positions(tiny: AvatarDiTConfig) -> None:
    table = RopeTable(tiny)
    q, k = torch.randn(2, tiny.chunk_tokens, tiny.head_dim)
    near = rotate(q, table.chunk(5)) @ rotate(k, table.chunk(3)).T
    far = rotate(q, table.chunk(45)) @ rotate(k, table.chunk(43)).T
    torch.testing.assert_close(near, far, atol=2e-5, rtol=0)


def test_shift_moves_only_time(tiny: AvatarDiTConfig) -> None:
    table = RopeTable(tiny)
    k = torch.randn(tiny.chunk_tokens, tiny.head_dim)
    t = tiny.rope_dims[0]
    moved = rotate(k, table.chunk(30))
    moved[:, :t] = rotate(moved[:, :t], table.shift(-42))
    torch.testing.assert_close(moved, rotate(k, table.chunk(-12)), atol=2e-6, rtol=0)


def test_what_is_no_patch_stands_below_the_picture(tiny: AvatarDiTConfig) -> None:
    """Places are part of what a model learned: moving one makes every checkpoint another."""
    rows, columns = tiny.grid
    wide = replace(tiny, num_sink=tiny.num_patches + columns + 1)  # one more than fills a row
    table = RopeTable(wide)
    t, y, x = (torch.arange(0, dims, 2) / dims for dims in tiny.rope_dims)

    def angles(time: int, row: int, column: int) -> Tensor:
        places = ((time, t), (row, y), (column, x))
        return torch.cat([place * 10_000.0**-powers for place, powers in places])

    conditioning = table.chunk(3).cos[tiny.num_patches :]
    registers = table.sink().cos[tiny.num_patches :]
    assert (len(conditioning), len(registers)) == (9, columns + 1)
    for index, found in enumerate(conditioning):
        torch.testing.assert_close(found, angles(3, rows + 2, 2 * index + 2).cos())
    for index, found in enumerate(registers):
        row, column = divmod(index, columns)
        torch.testing.assert_close(found, angles(0, rows + 4 + row, column).cos())


def test_what_the_model_has_must_be_given(tiny_wan: AvatarDiTConfig) -> None:
    model = DiT(tiny_wan, LocalComm())
    latent = torch.zeros(tiny_wan.latent_channels, *tiny_wan.latent_size)
    with pytest.raises(ValueError, match="text_NE is missing, but the model has 20 channels"):
        model.begin(None, latent)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="photo_features is given, but the model has 0 channels"):
        model.begin(None, latent, photo_features=latent)  # type: ignore[arg-type]


class Plain:
    """Our arrangement once more, for all chunks at once: full tensors, a mask, no cache, no ranks.

    Written from the layout's names alone, so that it shares nothing with the model but weights.
    """

    def __init__(self, config: AvatarDiTConfig, seed: int = 0) -> None:
        weights = random_weights(config, seed)
        self.config = config
        self.w = {spec.name: weights.dit.read(spec.name) for spec in tensor_specs(config)}

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def mlp(self, x: Tensor, name: str) -> Tensor:
        return self.linear(F.silu(self.linear(x, f"{name}.hidden")), f"{name}.output")

    def modulation(self, sigma: float) -> tuple[Tensor, Tensor]:
        half = self.config.time_channels // 2
        angles = 1000 * sigma * 10_000.0 ** (-torch.arange(half) / half)
        time = self.mlp(torch.cat([angles.cos(), angles.sin()]), "time_embedding")
        return self.linear(F.silu(time), "modulation").view(6, -1), time

    def forward(
        self, sink: Tensor, chunks: list[tuple[Tensor, float, Tensor]], angles: Rotation,
        mask: Tensor,
    ) -> Tensor:  # fmt: skip
        """Give the last chunk's prediction; each chunk is (noisy latent, sigma, conditions)."""
        config = self.config
        embed = [self.linear(patchify(sink, config.patch), "patch_embedding"), self.w["registers"]]
        mods = [self.modulation(0.0)[0].expand(config.num_sink, -1, -1)]
        for noisy, sigma, conditions in chunks:
            embed += [self.linear(patchify(noisy, config.patch), "patch_embedding"), conditions]
            mods.append(self.modulation(sigma)[0].expand(config.chunk_tokens, -1, -1))
        x, mod = torch.cat(embed), torch.cat(mods)
        for i in range(config.num_layers):
            x = self.layer(x, mod, f"layers.{i}", angles, mask)
        x = x[-config.chunk_tokens :][: config.num_patches]
        shift, scale = self.w["output_table"] + self.modulation(chunks[-1][1])[1]
        x = self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift, "output")
        return unpatchify(x, config.patch, config.latent_size)

    def layer(self, x: Tensor, mod: Tensor, at: str, angles: Rotation, mask: Tensor) -> Tensor:
        m = (mod + self.w[f"{at}.table"]).unbind(1)
        heads = (self.config.num_heads, self.config.head_dim)
        h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + m[1]) + m[0]
        q, k, v = (self.linear(h, f"{at}.attention.{n}").unflatten(-1, heads) for n in "qkv")
        q, k = (
            F.rms_norm(y, y.shape[-1:], self.w[f"{at}.attention.{n}_norm.weight"], 1e-6)
            for y, n in ((q, "q"), (k, "k"))
        )
        per_head = Rotation(angles.cos[:, None], angles.sin[:, None])
        q, k, v = (y.transpose(0, 1) for y in (rotate(q, per_head), rotate(k, per_head), v))
        logits = (q @ k.transpose(1, 2)) / self.config.head_dim**0.5
        seen = logits.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + m[2] * self.linear(seen.transpose(0, 1).flatten(1), f"{at}.attention.out")
        h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + m[4]) + m[3]
        h = F.silu(self.linear(h, f"{at}.feed_forward.gate")) * self.linear(
            h, f"{at}.feed_forward.up"
        )
        return x + m[5] * self.linear(h, f"{at}.feed_forward.down")

    def conditions(self, speech: Tensor, controls: Tensor) -> Tensor:
        tokens = self.linear(self.mlp(speech, "speech_net"), "speech_embedding")
        control = self.linear(controls[None], "control_embedding")
        return torch.cat([tokens, control]) + self.w["conditioning_table"]


def causal_mask(config: AvatarDiTConfig, num_chunks: int) -> Tensor:
    block = torch.cat(
        [torch.zeros(config.num_sink, dtype=torch.long)]
        + [torch.full((config.chunk_tokens,), 1 + c) for c in range(num_chunks)]
    )
    query, key = block[:, None], block[None]
    return (key <= query) & ((key == 0) | (query - key < config.window))


def test_cached_chunks_equal_a_plain_forward(tiny, start) -> None:
    """Six chunks of four passes: each prediction must equal that of one forward over everything.

    Six, because with a window of six nothing has left it yet: a chunk's keys then depend only on
    what the plain forward sees too.
    """
    config = replace(tiny, sigmas=(1.0, 0.5))
    run = start(config)
    plain = Plain(config)
    sink = run.photo.latent
    shape = (config.latent_channels, *config.latent_size)
    past: list[tuple[Tensor, float, Tensor]] = []
    table = RopeTable(config)
    for chunk in range(6):
        draw = torch.Generator().manual_seed(chunk)
        speech = torch.randn(config.num_speech_tokens, config.speech.inputs, generator=draw)
        conditions = plain.conditions(speech, torch.randn(config.num_controls, generator=draw))
        angles = [table.sink(), *(table.chunk(1 + c) for c in range(chunk + 1))]
        rotation = Rotation(*(torch.cat(parts) for parts in zip(*angles, strict=True)))
        mask = causal_mask(config, chunk + 1)
        noisy = chunk_noise(5, chunk, 0, shape)
        for index, sigma in enumerate(config.sigmas):
            step = (noisy, sigma, conditions)
            x0 = noisy - sigma * plain.forward(sink, [*past, step], rotation, mask)
            if index == 0:
                noisy = (1 - config.sigmas[1]) * x0 + config.sigmas[1] * chunk_noise(
                    5, chunk, 1, shape
                )
        past.append(step)
        error = (run.chunk() - x0).abs().max() / x0.abs().max()
        assert error <= 2e-5, (chunk, error)
