"""Passes and their noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.denoise import draw_noise
from talking_avatar.engine.diffusion.model.noise import chunk_noise
from talking_avatar.engine.diffusion.model.sampler import Sampler


def test_noise_is_a_function_of_its_numbers_alone() -> None:
    noise = chunk_noise(7, 3, 1, (4, 5))
    assert torch.equal(noise, chunk_noise(7, 3, 1, (4, 5)))
    for other in ((8, 3, 1), (7, 4, 1), (7, 3, 2)):
        assert not torch.equal(noise, chunk_noise(*other, (4, 5)))
    assert torch.equal(chunk_noise(-1, 0, 0, (2,)), chunk_noise(2**64 - 1, 0, 0, (2,)))


def test_noise_keeps_its_bits() -> None:
    """Golden values: another numpy or torch must not change a stream."""
    assert [round(float(x), 6) for x in chunk_noise(1, 2, 3, (4,))] == [
        0.371669,
        2.036439,
        1.379335,
        0.814399,
    ]


def test_noise_is_standard_normal_and_independent() -> None:
    noise = torch.stack([chunk_noise(0, c, p, (20_000,)) for c in range(3) for p in range(2)])
    assert noise.mean(1).abs().max() < 0.03
    assert (noise.std(1) - 1).abs().max() < 0.02
    assert (noise.abs() < 1).float().mean() == pytest.approx(0.6827, abs=0.01)
    correlation = torch.corrcoef(noise) - torch.eye(6)
    assert correlation.abs().max() < 0.03


@pytest.mark.parametrize("prediction", ["velocity", "x0"])
@pytest.mark.parametrize("renoise", ["fresh", "carried"])
def test_a_perfect_model_finds_x0_in_every_pass(prediction, renoise) -> None:
    sampler = Sampler((1.0, 0.7, 0.35, 0.12), prediction, renoise)
    truth, noise = torch.randn(2, 3, 4, 4)
    noisy = sampler.start(noise)
    for index, sigma in enumerate(sampler.sigmas):
        x0 = truth if prediction == "x0" else (noisy - truth) / sigma
        found = sampler.x0(noisy, x0, index)
        torch.testing.assert_close(found, truth, atol=1e-5, rtol=0)
        if index < 3:
            fresh = torch.randn(3, 4, 4)
            is_carried = renoise == "carried"
            noisy = sampler.next(noisy, found, index, None if is_carried else fresh)
            used = noise if is_carried else fresh
            after = sampler.sigmas[index + 1]
            torch.testing.assert_close(noisy, (1 - after) * truth + after * used, atol=1e-4, rtol=0)


def test_carried_noise_is_drawn_once(tiny: AvatarDiTConfig) -> None:
    fresh = draw_noise(tiny, 1, 2)
    carried = draw_noise(replace(tiny, renoise="carried"), 1, 2)
    assert fresh.shape == (4, 8, 12, 8)
    assert torch.equal(carried, fresh[:1])


def test_same_stream_same_bits(tiny: AvatarDiTConfig, start) -> None:
    one, two = start(tiny, 2), start(tiny, 2)
    for _ in range(3):
        assert torch.equal(one.chunk(), two.chunk())


def test_the_last_pass_stays_in_the_cache(tiny: AvatarDiTConfig, start) -> None:
    """A chunk's stored keys are those of its last pass: with one pass fewer they are others."""
    config = replace(tiny, num_layers=1)
    four, three = start(config), start(replace(config, sigmas=config.sigmas[:3]))
    four.chunk()
    three.chunk()
    place = four.ring.shape.place(0)
    keys = [run.denoisers[0].cache.keys(0, place) for run in (four, three)]
    assert not torch.allclose(keys[0], keys[1], atol=1e-3)


def test_rewind_and_again_gives_the_same_latents(tiny: AvatarDiTConfig, start) -> None:
    run = start(tiny)
    first = [run.chunk() for _ in range(12)]
    run.ring = run.ring.rewind(6)
    assert all(torch.equal(run.chunk(), first[c]) for c in range(7, 12))


def test_rewind_over_a_reset_goes_on(tiny: AvatarDiTConfig, start) -> None:
    """The positions stay lowered, so only the distance to the sink differs."""
    run = start(replace(tiny, reset_interval=8))
    first = [run.chunk() for _ in range(10)]
    run.ring = run.ring.rewind(6)
    again = run.chunk()
    assert run.ring.last_position == 0
    assert torch.isfinite(again).all()
    assert (again - first[7]).norm() / first[7].norm() < 0.5
