"""Engines: everything below one seam (`base`). `open_engine` is the door.

Opening an engine loads it; importing this package loads none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from talking_avatar.config import DiffusionConfig, EngineConfig, PortraitConfig

if TYPE_CHECKING:
    from talking_avatar.engine.base import Engine


ENGINE_NAMES = ("portrait", "diffusion")


async def open_engine(config: EngineConfig | str = "portrait") -> Engine:
    """Open an engine: load what it needs and hold its devices.

    Args:
        config: A configuration, or the name of an engine with its defaults: ``"portrait"`` or
            ``"diffusion"``.

    Returns:
        The engine; share it between sessions and close it with ``await engine.aclose()``.

    Raises:
        ValueError: No engine has that name.
        MissingDependency: The engine's extra is not installed.
        CheckpointError: Its weights do not fit.
        OutOfMemory: Its devices have too little memory.
    """
    if isinstance(config, str):
        if config not in ENGINE_NAMES:
            raise ValueError(f"engine {config!r} must be one of {', '.join(ENGINE_NAMES)}")
        config = TypeAdapter[EngineConfig](EngineConfig).validate_python({"kind": config})
    match config:
        case PortraitConfig():
            from talking_avatar.engine.portrait import PortraitEngine

            return PortraitEngine(config)
        case DiffusionConfig():
            from talking_avatar.engine.diffusion import open_diffusion_engine

            return await open_diffusion_engine(config)
