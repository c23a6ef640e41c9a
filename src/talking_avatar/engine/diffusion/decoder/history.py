"""What the convolutions in time remember between two chunks.

Takes: the past of every such layer, in the order in which the layers run.
Gives: each layer's input with its past in front, and the past for the next chunk.
Never: writes into a tensor it was given, or keeps more than a layer's own two frames alive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, eq=False)
class CodecState:
    """The past of every layer that looks back in time; a value, never written to.

    The sizes are fixed by the picture's size: the layers of Wan2.2's decoder at 704 x 1088 hold
    2.7 GB in BF16, whether one chunk was decoded or a million.

    Attributes:
        past: One tensor (1, channels, 1 or 2 frames, height, width) a layer, in running order.
    """

    past: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(tensor.nbytes for tensor in self.past)

    def snapshot(self) -> CodecState:
        """Copy it, for a caller that reuses the original's memory (a CUDA graph's buffers)."""
        return CodecState(tuple(tensor.clone() for tensor in self.past))


class History:
    """One walk over the layers: hands out the old past and collects the new one.

    Args:
        state: The past, or None for the opening: then every layer sees zeros before its first
            frame, which is how these networks were trained.
    """

    def __init__(self, state: CodecState | None) -> None:
        self._old = None if state is None else iter(state.past)
        self._new: list[Tensor] = []

    @property
    def is_opening(self) -> bool:
        """Whether this is the video's first latent frame: one frame of picture, not several."""
        return self._old is None

    def prepend(self, x_BCThw: Tensor, num_past: int) -> Tensor:
        """Put the layer's last ``num_past`` frames before ``x`` and remember the newest ones."""
        if self._old is None:
            joined = F.pad(x_BCThw, (0, 0, 0, 0, num_past, 0))
        else:
            joined = torch.cat((self._next_past(), x_BCThw), dim=2)
        # The clone lets go of the rest of `joined`: a view would keep all of it alive.
        self._new.append(joined[:, :, -num_past:].clone())
        return joined

    def skip(self, x_BCThw: Tensor, num_past: int) -> None:
        """Leave a layer out at the opening; its past stays empty (zeros)."""
        shape = (*x_BCThw.shape[:2], num_past, *x_BCThw.shape[3:])
        self._new.append(x_BCThw.new_zeros(shape))

    def _next_past(self) -> Tensor:
        past = None if self._old is None else next(self._old, None)
        if past is None:
            raise ValueError(f"the state holds fewer layers than this codec: {len(self._new)}")
        return past

    def finish(self) -> CodecState:
        """Return the past for the next chunk.

        Raises:
            ValueError: The state held another number of layers: it belongs to another network.
        """
        if self._old is not None and next(self._old, None) is not None:
            raise ValueError(f"the state holds more than the {len(self._new)} layers of this codec")
        return CodecState(tuple(self._new))
