"""Persistent product through TMA; scales in the epilogue."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _fp8_linear(
    x_rows, w_rows, x_scale, w_scale, out,
    num_rows, num_cols, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(num_rows, BLOCK_M)
    num_tiles = tiles_m * tl.cdiv(num_cols, BLOCK_N)
    steps = tl.cdiv(depth, BLOCK_K)
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=FLATTEN):
        # Tiles of the same weights are neighbors: each weight leaves device memory once.
        first_m = (tile % tiles_m) * BLOCK_M
        first_n = (tile // tiles_m) * BLOCK_N
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for step in range(steps):
            x = x_rows.load([first_m, step * BLOCK_K])
            w = w_rows.load([first_n, step * BLOCK_K])
            acc = tl.dot(x, w.T, acc)
        rows = first_m + tl.arange(0, BLOCK_M)
        cols = first_n + tl.arange(0, BLOCK_N)
        valid = rows < num_rows
        acc *= tl.load(x_scale + rows, mask=valid, other=0.0)[:, None]
        acc *= tl.load(w_scale + cols)[None, :]
        where = out + rows[:, None] * num_cols + cols[None, :]
        tl.store(where, acc.to(tl.bfloat16), mask=valid[:, None])


def launch(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, out: Tensor,
    block_m: int = 128, block_n: int = 256, block_k: int = 128,
    num_warps: int = 8, num_stages: int = 4, num_programs: int = 132, flatten: bool = True,
) -> None:  # fmt: skip
    """Launch on the current stream."""
    rows, depth = x.shape
    cols = w.shape[0]
    tiles = triton.cdiv(rows, block_m) * triton.cdiv(cols, block_n)
    _fp8_linear[(min(num_programs, tiles),)](
        TensorDescriptor.from_tensor(x, [block_m, block_k]),
        TensorDescriptor.from_tensor(w, [block_n, block_k]),
        x_scale, w_scale, out, rows, cols, depth,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, FLATTEN=flatten,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
