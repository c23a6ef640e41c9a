"""Attention of one chunk: self-attention over the cache, cross-attention over text.

Takes: normed tokens; an `Attend` that stores keys and values and looks at them.
Gives: the residual's update, whole, on every rank.
Never: knows where the cache is.

Legend: T tokens, H heads of this rank, D head_dim, N text tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.layout import padded_heads
from talking_avatar.engine.diffusion.model.rope import Rotation, rotate
from talking_avatar.engine.diffusion.ranks.comm import Comm
from talking_avatar.engine.diffusion.ranks.linear import Linear, ReducedLinear, parameter

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Rotated q, rotated k and v of the chunk, each [T, H, D], to what q sees, [T, H, D]."""


class TextKV(NamedTuple):
    """One layer's view of the text; the same for all chunks of a stream. Both [H, N, D]."""

    keys: Tensor
    values: Tensor


def local_inner(config: AvatarDiTConfig, comm: Comm) -> int:
    """Width of one rank's heads together, zero heads included."""
    return padded_heads(config, comm.world_size) // comm.world_size * config.head_dim


class HeadNorm(nn.Module):
    """RMS norm over each head alone."""

    def __init__(self, config: AvatarDiTConfig) -> None:
        super().__init__()
        self.weight = parameter(config.head_dim)
        self._eps = config.eps

    def forward(self, x_THD: Tensor) -> Tensor:
        """Norm queries or keys; keeps the type."""
        x = x_THD.float()
        return (x * (x.square().mean(-1, keepdim=True) + self._eps).rsqrt() * self.weight).to(
            x_THD.dtype
        )


class InnerNorm(nn.Module):
    """RMS norm over all heads of all ranks: costs one sum of one number a token."""

    def __init__(self, config: AvatarDiTConfig, comm: Comm, what: str) -> None:
        super().__init__()
        self.weight = parameter(local_inner(config, comm))
        self._eps = config.eps
        self._inner = config.inner
        self._comm = comm
        self._what = what

    def forward(self, x_THD: Tensor) -> Tensor:
        """Norm queries or keys; keeps the type. Zero heads add nothing to the mean."""
        x = x_THD.float()
        squares = self._comm.all_reduce(x.square().sum((1, 2)), self._what)
        rms = (squares / self._inner + self._eps).rsqrt()
        return (x * rms[:, None, None] * self.weight.view(x.shape[1:])).to(x_THD.dtype)


def qk_norm(config: AvatarDiTConfig, comm: Comm, what: str) -> HeadNorm | InnerNorm:
    """Make the configured norm of queries or keys."""
    return HeadNorm(config) if config.qk_norm == "head" else InnerNorm(config, comm, what)


class SelfAttention(nn.Module):
    """Queries, keys and values of the chunk; looks at the cache through `Attend`."""

    def __init__(
        self, config: AvatarDiTConfig, comm: Comm, precision: Precision, where: str
    ) -> None:
        super().__init__()
        self._dim = config.head_dim
        inner = local_inner(config, comm)
        self.qkv = Linear(config.hidden, 3 * inner, bias=config.bias, precision=precision)
        self.q_norm = qk_norm(config, comm, f"{where}.q_norm")
        self.k_norm = qk_norm(config, comm, f"{where}.k_norm")
        self.out = ReducedLinear(
            inner, config.hidden, bias=config.bias, precision=precision,
            comm=comm, what=f"{where}.out",
        )  # fmt: skip

    def forward(self, x_TC: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Give the update [T, hidden], FP32."""
        q_THD, k_THD, v_THD = self.qkv(x_TC).unflatten(-1, (3, -1, self._dim)).unbind(1)
        per_head = Rotation(rotation.cos.unsqueeze(1), rotation.sin.unsqueeze(1))
        q_THD = rotate(self.q_norm(q_THD), per_head)
        k_THD = rotate(self.k_norm(k_THD), per_head)
        seen: Tensor = self.out(attend(q_THD, k_THD, v_THD).flatten(1))
        return seen


class CrossAttention(nn.Module):
    """Looks at the text, whose keys and values are made once per stream."""

    def __init__(
        self, config: AvatarDiTConfig, comm: Comm, precision: Precision, where: str
    ) -> None:
        super().__init__()
        self._dim = config.head_dim
        inner = local_inner(config, comm)
        self.q = Linear(config.hidden, inner, bias=config.bias, precision=precision)
        self.kv = Linear(config.hidden, 2 * inner, bias=config.bias, precision=precision)
        self.q_norm = qk_norm(config, comm, f"{where}.q_norm")
        self.k_norm = qk_norm(config, comm, f"{where}.k_norm")
        self.out = ReducedLinear(
            inner, config.hidden, bias=config.bias, precision=precision,
            comm=comm, what=f"{where}.out",
        )  # fmt: skip

    def read(self, text_NC: Tensor) -> TextKV:
        """Make keys and values of embedded text."""
        k_NHD, v_NHD = self.kv(text_NC).unflatten(-1, (2, -1, self._dim)).unbind(1)
        return TextKV(self.k_norm(k_NHD).transpose(0, 1), v_NHD.transpose(0, 1))

    def forward(self, x_TC: Tensor, text: TextKV) -> Tensor:
        """Give the update [T, hidden], FP32."""
        q_THD = self.q_norm(self.q(x_TC).unflatten(-1, (-1, self._dim)))
        seen_HTD = F.scaled_dot_product_attention(q_THD.transpose(0, 1), text.keys, text.values)
        seen: Tensor = self.out(seen_HTD.transpose(0, 1).flatten(1))
        return seen
