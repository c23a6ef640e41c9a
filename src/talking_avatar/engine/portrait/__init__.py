"""The portrait engine: animates the photo itself, on one CPU core.

    photo.py -> detect.py, landmarks.py -> examine.py -> framing.py     room.py puts them together
    speech.py -> motion.py -> performer.py -> renderer.py               stream.py runs them

The engine is loaded when first asked for, so that one of its rooms can be used alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talking_avatar.engine.portrait.engine import PortraitEngine

__all__ = ["PortraitEngine"]


def __getattr__(name: str) -> Any:
    if name == "PortraitEngine":
        from talking_avatar.engine.portrait.engine import PortraitEngine

        return PortraitEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
