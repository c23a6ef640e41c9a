"""The feed-forward half of a layer: SwiGLU, or GELU by its tanh approximation."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.layout import padded_ffn
from talking_avatar.engine.diffusion.ranks.comm import Comm
from talking_avatar.engine.diffusion.ranks.linear import Linear, ReducedLinear


def swiglu(expanded_TF: Tensor) -> Tensor:
    """Gate the second half of the columns with the first (Shazeer 2020)."""
    gate_TF, up_TF = expanded_TF.chunk(2, -1)
    return F.silu(gate_TF) * up_TF


def gelu(expanded_TF: Tensor) -> Tensor:
    """Apply GELU by its tanh approximation."""
    return F.gelu(expanded_TF, approximate="tanh")


_ACTIVATIONS: MappingProxyType[str, tuple[Callable[[Tensor], Tensor], int]] = MappingProxyType(
    {"swiglu": (swiglu, 2), "gelu": (gelu, 1)}
)


class FeedForward(nn.Module):
    """Expand, activate, and add up over the ranks."""

    def __init__(
        self, config: AvatarDiTConfig, comm: Comm, precision: Precision, where: str
    ) -> None:
        super().__init__()
        self._activate, matrices = _ACTIVATIONS[config.activation]
        ffn = padded_ffn(config, comm.world_size) // comm.world_size
        self.expand = Linear(config.hidden, matrices * ffn, bias=config.bias, precision=precision)
        self.down = ReducedLinear(
            ffn, config.hidden, bias=config.bias, precision=precision,
            comm=comm, what=f"{where}.down",
        )  # fmt: skip

    def forward(self, x_TC: Tensor) -> Tensor:
        """Give the update [T, hidden], FP32."""
        update: Tensor = self.down(self._activate(self.expand(x_TC)))
        return update
