"""The diffusion engine: an autoregressive video DiT in this process. `open_diffusion_engine`.

Rooms, lower first:

    config, layout     what a model is, in numbers and names; no torch
    fp8                eight-bit linear layers, reference
    kernels/           the same operations, fast, on a GPU
    ranks/             tensor-parallel ranks as threads
    cache/             where keys and values live: ring in integers, kv in tensors
    model/             the DiT, its rotary positions, sampler and noise
    conditioning/      photo, speech and controls as the DiT is told them
    decoder/           latents to pictures
    weights/           where a model's numbers come from
    plan               what a placement costs: memory, work
    denoise            one rank's work on one stream
    opening, stream, runtime      the engine behind the seam of `talking_avatar.engine.base`

Importing this package loads no torch; opening an engine does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from talking_avatar.errors import MissingDependency

if TYPE_CHECKING:
    from talking_avatar.config import DiffusionConfig
    from talking_avatar.engine.diffusion.runtime import DiffusionEngine

__all__ = ["open_diffusion_engine"]


async def open_diffusion_engine(config: DiffusionConfig) -> DiffusionEngine:
    """Load a model onto its devices and start its ranks.

    Args:
        config: Which model, from where, on which devices, how precise.

    Raises:
        MissingDependency: torch or safetensors is not installed.
        ValueError: No model, or no device, has that name.
        EngineError: This machine has no such device.
        CheckpointError: There is no checkpoint, or it does not fit.
        OutOfMemory: A device has too little, by prediction or in fact.
    """
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"the diffusion engine needs {error.name}: "
            'pip install "talking-avatar[diffusion]" (on a machine without a GPU, torch\'s CPU '
            "build is enough)"
        ) from error
    from talking_avatar.engine.diffusion.runtime import DiffusionEngine

    return await DiffusionEngine.open(config)
