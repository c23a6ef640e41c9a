"""Changes of scale in space and time, and the shortcuts around them.

Legend of shapes: B batch, C channels, T frames, h, w height and width.

The opening frame of a video has no partner to be halved or doubled with: it passes the changes of
time as one frame. That is why one latent frame opens with one frame and goes on with four.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.decoder.history import History
from talking_avatar.engine.diffusion.decoder.layers import as_video, each_frame


class Upsample(nn.Module):
    """Twice the size, and twice the frames where ``doubles_time``."""

    def __init__(self, channels: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.time = nn.Conv3d(channels, 2 * channels, (3, 1, 1)) if doubles_time else None
        self.space = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x_BCThw: Tensor, history: History) -> Tensor:
        if self.time is not None:
            x_BCThw = self._double_time(self.time, x_BCThw, history)
        num_frames = x_BCThw.shape[2]
        larger = F.interpolate(each_frame(x_BCThw), scale_factor=2.0, mode="nearest-exact")
        return as_video(self.space(larger), num_frames)

    @staticmethod
    def _double_time(conv: nn.Conv3d, x_BCThw: Tensor, history: History) -> Tensor:
        """Make two frames of each; the opening frame stays alone and is not remembered."""
        if history.is_opening:
            history.skip(x_BCThw[:, :, :1], 2)
            return x_BCThw
        pair_B2CThw = torch.unflatten(conv(history.prepend(x_BCThw, 2)), 1, (2, -1))
        return pair_B2CThw.permute(0, 2, 3, 1, 4, 5).flatten(2, 3)


class Downsample(nn.Module):
    """Half the size, and half the frames where ``halves_time``."""

    def __init__(self, channels: int, *, halves_time: bool) -> None:
        super().__init__()
        self.space = nn.Conv2d(channels, channels, 3, stride=2)
        self.time = nn.Conv3d(channels, channels, (3, 1, 1), (2, 1, 1)) if halves_time else None

    def forward(self, x_BCThw: Tensor, history: History) -> Tensor:
        num_frames = x_BCThw.shape[2]
        # One row and column of zeros after the last: the kernel's window never starts outside.
        smaller = self.space(F.pad(each_frame(x_BCThw), (0, 1, 0, 1)))
        x_BCThw = as_video(smaller, num_frames)
        if self.time is None:
            return x_BCThw
        joined = history.prepend(x_BCThw, 1)
        halved: Tensor = x_BCThw if history.is_opening else self.time(joined)
        return halved


def spread(x_BCThw: Tensor, channels: int, time: int, space: int) -> Tensor:
    """Enlarge without weights: every input channel fills its share of the larger cell.

    Args:
        x_BCThw: What to enlarge.
        channels: Channels afterwards; they times the cell's volume are a multiple of C.
        time: Frames of one frame.
        space: Pixels a side of one pixel.

    Returns:
        (B, channels, T * time, h * space, w * space).
    """
    volume = time * space * space
    repeated = x_BCThw.repeat_interleave(channels * volume // x_BCThw.shape[1], dim=1)
    cells = torch.unflatten(repeated, 1, (channels, time, space, space))
    interleaved = cells.permute(0, 1, 5, 2, 6, 3, 7, 4)
    return interleaved.flatten(6, 7).flatten(4, 5).flatten(2, 3)


def gather(x_BCThw: Tensor, channels: int, time: int, space: int) -> Tensor:
    """Shrink without weights: the reverse of `spread`, by means over groups.

    Frames that do not fill a cell (the opening one) are preceded by zeros.

    Args:
        x_BCThw: What to shrink; h and w are multiples of ``space``.
        channels: Channels afterwards; they divide C times the cell's volume.
        time: Frames that become one.
        space: Pixels a side that become one.

    Returns:
        (B, channels, ceil(T / time), h / space, w / space).
    """
    x_BCThw = F.pad(x_BCThw, (0, 0, 0, 0, -x_BCThw.shape[2] % time, 0))
    batch, _, frames, height, width = x_BCThw.shape
    blocks = (frames // time, time, height // space, space, width // space, space)
    cells = x_BCThw.reshape(batch, -1, *blocks)
    stacked = cells.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4)
    return torch.unflatten(stacked, 1, (channels, -1)).mean(dim=2)
