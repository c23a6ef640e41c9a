"""One photo becomes a live talking character: an asyncio SDK for conversational products.

    async with AvatarSession("face.jpg", transport=FileTransport("out.mp4"),
                             clock="unpaced") as session:
        result = await session.say("speech.wav")

Importing this package loads no engine and no media library; names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from talking_avatar._version import __version__

if TYPE_CHECKING:
    from talking_avatar.audio import AudioFormat
    from talking_avatar.config import DiffusionConfig, EngineConfig, PortraitConfig
    from talking_avatar.engine import open_engine
    from talking_avatar.errors import (
        AtCapacity,
        AudioFormatError,
        CheckpointError,
        EngineBusy,
        EngineFailed,
        FaceTooSmall,
        FaceTurned,
        MissingDependency,
        NoFace,
        OutOfMemory,
        PhotoError,
        SessionClosed,
        SeveralFaces,
        TalkingAvatarError,
        TransportClosed,
        UnreadableImage,
    )
    from talking_avatar.file_transport import FileTransport
    from talking_avatar.session import AvatarSession, Turn
    from talking_avatar.transport import MediaInfo, Transport
    from talking_avatar.types import Frame, Position, TurnLatency, TurnResult

_ROOMS = {
    "talking_avatar.audio": ("AudioFormat",),
    "talking_avatar.config": ("DiffusionConfig", "EngineConfig", "PortraitConfig"),
    "talking_avatar.engine": ("open_engine",),
    "talking_avatar.errors": (
        "AtCapacity",
        "AudioFormatError",
        "CheckpointError",
        "EngineBusy",
        "EngineFailed",
        "FaceTooSmall",
        "FaceTurned",
        "MissingDependency",
        "NoFace",
        "OutOfMemory",
        "PhotoError",
        "SessionClosed",
        "SeveralFaces",
        "TalkingAvatarError",
        "TransportClosed",
        "UnreadableImage",
    ),
    "talking_avatar.file_transport": ("FileTransport",),
    "talking_avatar.session": ("AvatarSession", "Turn"),
    "talking_avatar.transport": ("MediaInfo", "Transport"),
    "talking_avatar.types": ("Frame", "Position", "TurnLatency", "TurnResult"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AtCapacity",
    "AudioFormat",
    "AudioFormatError",
    "AvatarSession",
    "CheckpointError",
    "DiffusionConfig",
    "EngineBusy",
    "EngineConfig",
    "EngineFailed",
    "FaceTooSmall",
    "FaceTurned",
    "FileTransport",
    "Frame",
    "MediaInfo",
    "MissingDependency",
    "NoFace",
    "OutOfMemory",
    "PhotoError",
    "PortraitConfig",
    "Position",
    "SessionClosed",
    "SeveralFaces",
    "TalkingAvatarError",
    "Transport",
    "TransportClosed",
    "Turn",
    "TurnLatency",
    "TurnResult",
    "UnreadableImage",
    "__version__",
    "open_engine",
]


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
