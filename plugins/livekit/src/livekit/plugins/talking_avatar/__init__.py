"""A talking avatar for LiveKit agents: one photo becomes the agent's face.

    from livekit.plugins import talking_avatar

    avatar = talking_avatar.AvatarSession(photo="face.jpg")
    await avatar.start(session, room=ctx.room)

Everything an agent needs of the core is re-exported here.
"""

from livekit.agents import Plugin

from talking_avatar import (
    AtCapacity,
    DiffusionConfig,
    EngineConfig,
    EngineFailed,
    FaceTooSmall,
    FaceTurned,
    NoFace,
    OutOfMemory,
    PhotoError,
    PortraitConfig,
    SeveralFaces,
    TalkingAvatarError,
    UnreadableImage,
    open_engine,
)
from talking_avatar.cost import Usage

from .avatar import AvatarSession
from .log import logger
from .metrics import TurnMetrics
from .version import __version__

__all__ = [
    "AtCapacity",
    "AvatarSession",
    "DiffusionConfig",
    "EngineConfig",
    "EngineFailed",
    "FaceTooSmall",
    "FaceTurned",
    "NoFace",
    "OutOfMemory",
    "PhotoError",
    "PortraitConfig",
    "SeveralFaces",
    "TalkingAvatarError",
    "TurnMetrics",
    "UnreadableImage",
    "Usage",
    "__version__",
    "open_engine",
]


class TalkingAvatarPlugin(Plugin):
    """Tells LiveKit's command line that the plugin is there."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or __name__, logger)


Plugin.register_plugin(TalkingAvatarPlugin())
