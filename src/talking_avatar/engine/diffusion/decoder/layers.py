"""The layers that both halves of the video autoencoder are made of.

Legend of shapes: B batch (1 here), C channels, T frames, h, w height and width. Everything runs
in channels-last memory as well: no layer asks for a layout, and the folds of T into B below are
then views.

Source: Wan, "Open and Advanced Large-Scale Video Generative Models", section 4.1 (causal 3-D
convolutions with a feature cache); the layout of the published Wan2.2-TI2V-5B autoencoder.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.decoder.history import History

NORM_EPS = 1e-12
"""Shortest vector that is still scaled to length one."""


def each_frame(x_BCThw: Tensor) -> Tensor:
    """Fold time into the batch: (B, C, T, h, w) to (B * T, C, h, w)."""
    return x_BCThw.transpose(1, 2).flatten(0, 1)


def as_video(x_NChw: Tensor, num_frames: int) -> Tensor:
    """Undo `each_frame`."""
    return torch.unflatten(x_NChw, 0, (-1, num_frames)).transpose(1, 2)


class CausalConv(nn.Conv3d):
    """A 3 x 3 x 3 convolution whose frame t sees frames t - 2, t - 1 and t."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=(0, 1, 1))

    def after(self, x_BCThw: Tensor, history: History) -> Tensor:
        """Convolve ``x`` with its past in front."""
        out: Tensor = self(history.prepend(x_BCThw, 2))
        return out


class ChannelNorm(nn.Module):
    """Scale every pixel's channel vector to the length sqrt(C), then each channel by a weight.

    Computes in FP32 whatever comes in: in BF16 the sum over 1,024 squares loses two digits.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x_BCThw: Tensor) -> Tensor:
        wide = x_BCThw.float()
        length: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True).clamp_min(NORM_EPS)
        gain: Tensor = self.weight * sqrt(self.weight.numel())
        return (wide / length).to(x_BCThw.dtype) * gain.view(-1, 1, 1, 1)


class ResidualBlock(nn.Module):
    """Two causal convolutions beside a shortcut, which is a 1 x 1 one where the width changes."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(in_channels)
        self.conv1 = CausalConv(in_channels, out_channels)
        self.norm2 = ChannelNorm(out_channels)
        self.conv2 = CausalConv(out_channels, out_channels)
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv3d(in_channels, out_channels, 1)

    def forward(self, x_BCThw: Tensor, history: History) -> Tensor:
        inner = self.conv1.after(F.silu(self.norm1(x_BCThw)), history)
        inner = self.conv2.after(F.silu(self.norm2(inner)), history)
        beside: Tensor = self.shortcut(x_BCThw)
        return inner + beside


class FrameAttention(nn.Module):
    """Self-attention with one head over the pixels of each frame by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BCThw: Tensor) -> Tensor:
        num_frames, height = x_BCThw.shape[2:4]
        pixels_NPC = each_frame(self.norm(x_BCThw)).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(pixels_NPC).unsqueeze(1).chunk(3, dim=-1)
        mixed_NPC = self.out(F.scaled_dot_product_attention(q, k, v).squeeze(1))
        mixed_NChw = torch.unflatten(mixed_NPC.transpose(1, 2), 2, (height, -1))
        return x_BCThw + as_video(mixed_NChw, num_frames)


class Middle(nn.Module):
    """The coarsest scale: residual block, attention, residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = ResidualBlock(channels, channels)
        self.attention = FrameAttention(channels)
        self.after = ResidualBlock(channels, channels)

    def forward(self, x_BCThw: Tensor, history: History) -> Tensor:
        attended = self.attention(self.before(x_BCThw, history))
        out: Tensor = self.after(attended, history)
        return out
