"""The diffusion engine's kernels: one folder each, with its reference as the specification.

Takes and gives plain tensors; never allocates inside a step when ``out`` is given, and never
waits for the host. On a CPU every op runs its reference; Triton is imported only by a folder's
``kernel.py``, and that only when a tensor lives on a GPU.

Layouts, shared by all:

- FP8 is ``float8_e4m3fn``; a scale is FP32 and multiplies: ``value = fp8 * scale``.
- Linear layers: activations (M, K) with one scale a row, weights (N, K) with one scale a row,
  that is per token and per output channel. A matrix product may be **raw**: BF16 sums of FP8
  products without either scale, which the op that reads it next folds in (rounding to BF16 is
  relative, so the order does not change the error). See docs/design/kernels.md.
- Cache: K (heads, slots, dim), V (heads, dim, slots), scales (heads, slots); ``slots`` is a
  multiple of 16, and storage holds finite numbers from the start (allocate zeros).
- Ranges of slots: int32 (n, 2) on the device, ``[start, stop)`` each, possibly empty.
- Rotary pairs are interleaved: (x[0], x[1]), (x[2], x[3])...; cos and sin are (..., dim / 2).
"""

from .fp8_linear import fp8_linear, fp8_matmul
from .modulate_norm_quantize import modulate_norm_quantize
from .reduce_modulate_quantize import Modulation, PeerTables, reduce_modulate_quantize
from .rotate_slots import rotate_slots
from .swiglu_quantize import swiglu_quantize
from .window_attention import AttentionWorkspace, window_attention
from .write_qkv import QueryKeyValue, query_scale, write_qkv

__all__ = [
    "AttentionWorkspace",
    "Modulation",
    "PeerTables",
    "QueryKeyValue",
    "fp8_linear",
    "fp8_matmul",
    "modulate_norm_quantize",
    "query_scale",
    "reduce_modulate_quantize",
    "rotate_slots",
    "swiglu_quantize",
    "window_attention",
    "write_qkv",
]
