"""What enters the DiT, made into tokens and modulation: patches, noise level, sound, controls.

Takes: latents, sigma, speech features, control values. Gives: tensors of the hidden width.
Never: divided over ranks: every rank makes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TIME_SCALE = 1_000.0
"""Sigma 1 is time 1,000: the convention of the Wan family."""


class Dense(nn.Linear):
    """A linear layer that takes any float type and gives its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply in the weight's type."""
        return super().forward(x.to(self.weight.dtype))


class MLP(nn.Module):
    """Two dense layers with an activation between."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, activate: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.hidden = Dense(inputs, hidden)
        self.output = Dense(hidden, outputs)
        self._activate = activate

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        y: Tensor = self.output(self._activate(self.hidden(x)))
        return y


def patchify(latent_Chw: Tensor, patch: int) -> Tensor:
    """Cut a latent frame into tokens [rows * columns, C * p * p], row by row."""
    tokens = F.unfold(latent_Chw.unsqueeze(0), patch, stride=patch)
    return tokens.squeeze(0).T


def unpatchify(tokens_TP: Tensor, patch: int, size: tuple[int, int]) -> Tensor:
    """Put tokens back together: the inverse of `patchify`."""
    folded = F.fold(tokens_TP.T.unsqueeze(0), size, patch, stride=patch)
    return folded.squeeze(0)


def sinusoid(sigma: float, channels: int, device: torch.device) -> Tensor:
    """Embed a noise level as cosines, then sines, of falling frequency."""
    steps = torch.arange(channels // 2, dtype=torch.float32, device=device)
    angles = TIME_SCALE * sigma * torch.exp(-log(10_000.0) / (channels // 2) * steps)
    return torch.cat([angles.cos(), angles.sin()])


def normalize(x: Tensor, eps: float) -> Tensor:
    """Layer norm without weights, FP32."""
    return F.layer_norm(x.float(), x.shape[-1:], eps=eps)


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Norm, scale and shift each token; keeps the type."""
    return (normalize(x, eps) * (1 + scale) + shift).to(x.dtype)
