"""Noise that depends on (seed, chunk, pass) alone.

Takes: three integers. Gives: standard normal numbers. Never: keeps a state, so any number of ranks,
any order and any rewind see the same noise.

The bits are Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the
key is the seed, the upper words of the counter are chunk and pass. Normals are made of raw bits
here (Box and Muller 1958, in FP64), because numpy's own normals may change between its versions.
"""

from __future__ import annotations

from math import pi, prod

import numpy as np
import torch
from torch import Tensor


def chunk_noise(seed: int, chunk: int, pass_index: int, shape: tuple[int, ...]) -> Tensor:
    """Draw one pass's noise.

    Args:
        seed: Of the stream; any integer of 64 bits.
        chunk: Index of the chunk.
        pass_index: 0 for the first pass.
        shape: Of the latent.

    Returns:
        FP32 on the CPU.
    """
    count = prod(shape)
    bits = np.random.Philox(key=seed % 2**64, counter=[0, 0, pass_index, chunk])
    half = (count + 1) // 2
    raw = bits.random_raw(2 * half)
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[:half]))
    angle = 2.0 * pi * uniform[half:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normal.astype(np.float32).reshape(shape))
