"""How an engine is chosen: frozen, keyword-only values, checked once when they are built.

Never reads the environment and never loads an engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _EngineConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortraitConfig(_EngineConfig):
    """The engine that animates the photo itself, on half a CPU core. Needs no download.

    Attributes:
        width, height: Pixels of a frame: even, at least 128, at most 1280 on the long side.
        background: RGB shown where the photo ends or is transparent.
        num_threads: Threads that render; one is enough for one live session.
    """

    kind: Literal["portrait"] = "portrait"
    width: int = Field(704, ge=128, le=1280)
    height: int = Field(1088, ge=128, le=1280)
    background: tuple[int, int, int] = (38, 40, 44)
    num_threads: int = Field(1, ge=1, le=16)

    @model_validator(mode="after")
    def _sizes_are_even(self) -> PortraitConfig:
        if self.width % 2 or self.height % 2:
            raise ValueError(
                f"size {self.width}x{self.height} must be even on both sides: "
                "video codecs halve the color planes"
            )
        if not all(0 <= channel <= 255 for channel in self.background):
            raise ValueError(f"background {self.background} must be RGB, each 0 to 255")
        return self


class DiffusionConfig(_EngineConfig):
    """The autoregressive video DiT, in this process.

    Attributes:
        model: Named size: ``"tiny"``, ``"avatar-small"``, ``"avatar-57b"``...
        checkpoint: Folder with config.json and safetensors shards; None with random weights.
        weights: ``"checkpoint"``, or ``"random"`` for benchmarks.
        devices: What denoises, ``"cpu"`` or ``"cuda:0"``..., one per tensor-parallel rank; the same
            device may stand several times.
        decoder_device: What decodes, named likewise; None: the first of ``devices``.
        precision: Of the linear layers.
        kv_precision: Of the ring cache.
        seed: Of random weights.
    """

    kind: Literal["diffusion"] = "diffusion"
    model: str = "avatar-small"
    checkpoint: Path | None = None
    weights: Literal["checkpoint", "random"] = "checkpoint"
    devices: tuple[str, ...] = ("cpu",)
    decoder_device: str | None = None
    precision: Literal["fp32", "bf16", "fp8"] = "bf16"
    kv_precision: Literal["fp32", "bf16", "fp8"] = "bf16"
    seed: int = 0


EngineConfig: TypeAlias = Annotated[PortraitConfig | DiffusionConfig, Field(discriminator="kind")]
"""Any engine's configuration."""
