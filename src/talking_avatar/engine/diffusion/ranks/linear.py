"""Linear layers of one rank: divided by output or by input, in FP32, BF16 or FP8.

Takes: a rank's part of a matrix. Gives: `Linear`, and `ReducedLinear`, whose outputs are added up
over the ranks in FP32. Never: loads or divides weights; the weights room does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talking_avatar.engine.diffusion.config import Precision
from talking_avatar.engine.diffusion.fp8 import DTYPES, fp8_linear
from talking_avatar.engine.diffusion.ranks.comm import Comm


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """Make an unfilled parameter that wants no gradient."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class Linear(nn.Module):
    """A matrix whose rows are divided over the ranks: every rank has its own outputs.

    Attributes:
        weight: [outputs, inputs] in the layer's precision.
        weight_scale: FP32 [outputs]; FP8 only.
        bias: [outputs] or None.
    """

    weight: nn.Parameter
    weight_scale: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool, precision: Precision) -> None:
        super().__init__()
        is_fp8 = precision == "fp8"
        self.weight = parameter(outputs, inputs, dtype=DTYPES[precision])
        self.register_parameter("weight_scale", parameter(outputs) if is_fp8 else None)
        bias_dtype = torch.float32 if is_fp8 else DTYPES[precision]
        self.register_parameter("bias", parameter(outputs, dtype=bias_dtype) if bias else None)

    def product(self, x_TK: Tensor) -> Tensor:
        """Multiply, without the bias."""
        if self.weight_scale is None:
            return F.linear(x_TK.to(self.weight.dtype), self.weight)
        return fp8_linear(x_TK, self.weight, self.weight_scale)

    def forward(self, x_TK: Tensor) -> Tensor:
        """Give [T, outputs] in the type of ``x_TK``."""
        y_TN = self.product(x_TK)
        if self.bias is not None:
            y_TN = y_TN + self.bias
        return y_TN.to(x_TK.dtype)


class ReducedLinear(Linear):
    """A matrix whose columns are divided over the ranks, as its inputs are.

    Each rank's product is a partial sum; `Comm` adds them, then the bias joins once.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        precision: Precision,
        comm: Comm,
        what: str,
    ) -> None:
        super().__init__(inputs, outputs, bias=bias, precision=precision)
        self._comm = comm
        self._what = what

    def forward(self, x_TK: Tensor) -> Tensor:
        """Give the whole [T, outputs] in FP32, equal bits on every rank."""
        y_TN = self._comm.all_reduce(self.product(x_TK), self._what)
        return y_TN if self.bias is None else y_TN + self.bias
