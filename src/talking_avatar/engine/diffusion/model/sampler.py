"""From a prediction to the next noisy latent: the arithmetic between passes.

Takes: what the DiT predicted at one noise level. Gives: x0, and the latent of the next level.
Never: runs the DiT.

A latent at level s is ``(1 - s) * x0 + s * noise`` (rectified flow, Liu et al. 2022): its
velocity is ``noise - x0``. Few-step models are trained with one of two ways to go on: *fresh*
noise each pass, or the noise that the prediction implies, *carried* on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from talking_avatar.engine.diffusion.config import AvatarDiTConfig


@dataclass(frozen=True, slots=True)
class Sampler:
    """How one chunk is denoised; a value.

    Attributes:
        sigmas: Noise level of each pass, falling.
        prediction: What the DiT predicts.
        renoise: Where the noise between passes comes from.
    """

    sigmas: tuple[float, ...]
    prediction: Literal["velocity", "x0"]
    renoise: Literal["fresh", "carried"]

    @classmethod
    def of(cls, config: AvatarDiTConfig) -> Sampler:
        """Take the model's own."""
        return cls(config.sigmas, config.prediction, config.renoise)

    @property
    def num_draws(self) -> int:
        """How many draws of noise a chunk takes: one a pass, or one in all where it is carried."""
        return len(self.sigmas) if self.renoise == "fresh" else 1

    def start(self, noise: Tensor) -> Tensor:
        """Give the first pass's latent: nothing is known yet, so x0 counts as zero."""
        return noise * self.sigmas[0]

    def x0(self, noisy: Tensor, predicted: Tensor, pass_index: int) -> Tensor:
        """Estimate the clean latent from a prediction."""
        if self.prediction == "x0":
            return predicted
        return noisy - self.sigmas[pass_index] * predicted

    def next(self, noisy: Tensor, x0: Tensor, pass_index: int, fresh: Tensor | None) -> Tensor:
        """Give the latent of pass ``pass_index + 1``.

        Args:
            noisy: Latent of this pass.
            x0: Its estimate.
            pass_index: This pass.
            fresh: Standard normal noise; None where noise is carried.
        """
        sigma, after = self.sigmas[pass_index : pass_index + 2]
        noise = (noisy - (1 - sigma) * x0) / sigma if fresh is None else fresh
        return (1 - after) * x0 + after * noise
