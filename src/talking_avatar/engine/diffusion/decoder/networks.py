"""The two halves of the Wan2.2-class video autoencoder, as networks.

Takes: patched pixels or raw latents in [B, C, T, h, w], and the history of the video.
Gives: the other of the two. The history is the only thing that links one call to the next.
Never: normalizes latents, unfolds patches or makes bytes; `codec` does.

Any number of latent frames may go through one call; only the opening frame goes alone.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig
from talking_avatar.engine.diffusion.decoder.history import CodecState, History
from talking_avatar.engine.diffusion.decoder.layers import (
    CausalConv,
    ChannelNorm,
    Middle,
    ResidualBlock,
)
from talking_avatar.engine.diffusion.decoder.resample import Downsample, Upsample, gather, spread


class UpStage(nn.Module):
    """Residual blocks, then twice the size, beside an unlearned enlargement of the input."""

    def __init__(
        self, widths: tuple[int, int], num_residuals: int, doubles_time: bool | None
    ) -> None:
        super().__init__()
        inner, self.out_channels = widths
        self.time_factor = 2 if doubles_time else 1
        self.residuals = nn.ModuleList(
            ResidualBlock(inner if index == 0 else self.out_channels, self.out_channels)
            for index in range(num_residuals)
        )
        self.upsample = (
            None if doubles_time is None else Upsample(self.out_channels, doubles_time=doubles_time)
        )

    def forward(self, x_BCThw: Tensor, history: History) -> Tensor:
        entered = x_BCThw
        for residual in self.residuals:
            x_BCThw = residual(x_BCThw, history)
        if self.upsample is None:
            return x_BCThw
        shortcut = spread(entered, self.out_channels, self.time_factor, 2)
        if history.is_opening:
            shortcut = shortcut[:, :, self.time_factor - 1 :]
        enlarged: Tensor = self.upsample(x_BCThw, history)
        return enlarged + shortcut


class DownStage(nn.Module):
    """Residual blocks, then half the size, beside group means of the input."""

    def __init__(
        self, widths: tuple[int, int], num_residuals: int, halves_time: bool | None
    ) -> None:
        super().__init__()
        inner, self.out_channels = widths
        self.time_factor = 2 if halves_time else 1
        self.residuals = nn.ModuleList(
            ResidualBlock(inner if index == 0 else self.out_channels, self.out_channels)
            for index in range(num_residuals)
        )
        self.downsample = (
            None if halves_time is None else Downsample(self.out_channels, halves_time=halves_time)
        )

    def forward(self, x_BCThw: Tensor, history: History) -> Tensor:
        space_factor = 1 if self.downsample is None else 2
        shortcut = gather(x_BCThw, self.out_channels, self.time_factor, space_factor)
        for residual in self.residuals:
            x_BCThw = residual(x_BCThw, history)
        if self.downsample is not None:
            x_BCThw = self.downsample(x_BCThw, history)
        return x_BCThw + shortcut


class DecoderNetwork(nn.Module):
    """Raw latents to patched pixels: 1 frame for the opening latent, then 4 for each."""

    def __init__(self, config: WanCodecConfig) -> None:
        super().__init__()
        widths = config.decoder_widths
        doubles_time = (*config.halves_time[::-1], None)
        self.from_latent = nn.Conv3d(config.latent_channels, config.latent_channels, 1)
        self.conv_in = CausalConv(config.latent_channels, widths[0])
        self.middle = Middle(widths[0])
        self.stages = nn.ModuleList(
            UpStage(pair, config.num_residuals + 1, doubles)
            for pair, doubles in zip(pairwise(widths), doubles_time, strict=True)
        )
        self.norm_out = ChannelNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], config.pixel_channels)

    def forward(self, latents_BCThw: Tensor, state: CodecState | None) -> tuple[Tensor, CodecState]:
        """Decode latents that follow ``state``; None stands for the opening, with T = 1."""
        history = History(state)
        entered = self.conv_in.after(self.from_latent(latents_BCThw), history)
        x_BCThw = self.middle(entered, history)
        for stage in self.stages:
            x_BCThw = stage(x_BCThw, history)
        pixels = self.conv_out.after(F.silu(self.norm_out(x_BCThw)), history)
        return pixels, history.finish()


class EncoderNetwork(nn.Module):
    """Patched pixels to the mean of the raw latents: 1 frame for the opening one, then 4 each."""

    def __init__(self, config: WanCodecConfig) -> None:
        super().__init__()
        widths = config.encoder_widths
        halves_time = (*config.halves_time, None)
        self.conv_in = CausalConv(config.pixel_channels, widths[0])
        self.stages = nn.ModuleList(
            DownStage(pair, config.num_residuals, halves)
            for pair, halves in zip(pairwise(widths), halves_time, strict=True)
        )
        self.middle = Middle(widths[-1])
        self.norm_out = ChannelNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], 2 * config.latent_channels)
        self.to_latent = nn.Conv3d(2 * config.latent_channels, 2 * config.latent_channels, 1)

    def forward(self, pixels_BCThw: Tensor, state: CodecState | None) -> tuple[Tensor, CodecState]:
        """Encode frames that follow ``state``; None stands for the opening, with T = 1."""
        history = History(state)
        x_BCThw = self.conv_in.after(pixels_BCThw, history)
        for stage in self.stages:
            x_BCThw = stage(x_BCThw, history)
        x_BCThw = F.silu(self.norm_out(self.middle(x_BCThw, history)))
        mean_and_spread = self.to_latent(self.conv_out.after(x_BCThw, history))
        return mean_and_spread.chunk(2, dim=1)[0], history.finish()
