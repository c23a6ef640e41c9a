"""A live character in a browser: picture, sound and control over one websocket.

    from talking_avatar_websocket import serve
    await serve("face.jpg")                     # a page on http://127.0.0.1:8765/

    from talking_avatar_websocket import WebsocketTransport
    async with AvatarSession("face.jpg", transport=WebsocketTransport(), pixel_format="i420"): ...

    from talking_avatar_websocket import connect
    async with connect("ws://127.0.0.1:8765/ws") as client: ...

The protocol is documented so that a client in any language can be written from the document alone.
"""

from __future__ import annotations

from talking_avatar_websocket._app import serve
from talking_avatar_websocket._client import AvatarClient, Picture, Refused, Sound, connect
from talking_avatar_websocket._conversation import Conversation, Scene
from talking_avatar_websocket._events import (
    InterruptAsked,
    PauseAsked,
    PhotoCame,
    ResumeAsked,
    SpeechBegan,
    SpeechCame,
    SpeechEnded,
    TextCame,
    ViewerEvent,
)
from talking_avatar_websocket._limits import Limits, Rate
from talking_avatar_websocket._messages import Features
from talking_avatar_websocket._rate import RateRange
from talking_avatar_websocket._server import AvatarServer
from talking_avatar_websocket._transport import WebsocketTransport
from talking_avatar_websocket._viewer import Offering
from talking_avatar_websocket._voices import EspeakVoice, Voice, VoiceFailed

__version__ = "0.1.0"

__all__ = [
    "AvatarClient",
    "AvatarServer",
    "Conversation",
    "EspeakVoice",
    "Features",
    "InterruptAsked",
    "Limits",
    "Offering",
    "PauseAsked",
    "PhotoCame",
    "Picture",
    "Rate",
    "RateRange",
    "Refused",
    "ResumeAsked",
    "Scene",
    "Sound",
    "SpeechBegan",
    "SpeechCame",
    "SpeechEnded",
    "TextCame",
    "ViewerEvent",
    "Voice",
    "VoiceFailed",
    "WebsocketTransport",
    "__version__",
    "connect",
    "serve",
]
