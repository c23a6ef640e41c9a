"""Control messages: JSON objects with a `type`, as frozen pydantic models.

Unknown types give None and unknown fields are ignored, so that either side may be newer.
A message that is known and wrong raises `BadMessage`, whose text never holds what was sent.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from talking_avatar_websocket._messages.base import VERSION, BadMessage, Message
from talking_avatar_websocket._messages.from_client import (
    CLIENT_MESSAGES,
    AudioStart,
    AudioStop,
    ClientMessage,
    Feedback,
    Flushed,
    Hello,
    Interrupt,
    NeedKey,
    Pause,
    PhotoStart,
    Ping,
    Played,
    ReleaseFloor,
    RequestFloor,
    Resume,
    Role,
    SayText,
)
from talking_avatar_websocket._messages.from_server import (
    SERVER_MESSAGES,
    ErrorCode,
    ErrorMessage,
    FaceFound,
    Features,
    Floor,
    FloorReason,
    Flush,
    Interrupted,
    Latency,
    Limit,
    Paused,
    PhotoAccepted,
    PhotoProblem,
    PhotoRejected,
    Pong,
    Said,
    ServerMessage,
    Source,
    Stats,
    StreamEnded,
    StreamInfo,
    TurnFinished,
    TurnStarted,
    Welcome,
    WelcomeLimits,
)

__all__ = [
    "CLIENT_MESSAGES",
    "SERVER_MESSAGES",
    "VERSION",
    "AudioStart",
    "AudioStop",
    "BadMessage",
    "ClientMessage",
    "ErrorCode",
    "ErrorMessage",
    "FaceFound",
    "Features",
    "Feedback",
    "Floor",
    "FloorReason",
    "Flush",
    "Flushed",
    "Hello",
    "Interrupt",
    "Interrupted",
    "Latency",
    "Limit",
    "Message",
    "NeedKey",
    "Pause",
    "Paused",
    "PhotoAccepted",
    "PhotoProblem",
    "PhotoRejected",
    "PhotoStart",
    "Ping",
    "Played",
    "Pong",
    "ReleaseFloor",
    "RequestFloor",
    "Resume",
    "Role",
    "Said",
    "SayText",
    "ServerMessage",
    "Source",
    "Stats",
    "StreamEnded",
    "StreamInfo",
    "TurnFinished",
    "TurnStarted",
    "Welcome",
    "WelcomeLimits",
    "parse_client",
    "parse_server",
]

M = TypeVar("M", bound=Message)


def _by_type(models: tuple[type[M], ...]) -> dict[str, type[M]]:
    return {model.model_fields["type"].default: model for model in models}


_CLIENT = _by_type(CLIENT_MESSAGES)
_SERVER = _by_type(SERVER_MESSAGES)


def parse_client(text: str) -> ClientMessage | None:
    """Read what a client sent; None if its type is unknown.

    Raises:
        BadMessage: It is no JSON object with a type, or a known one is wrong.
    """
    return _parse(text, _CLIENT)


def parse_server(text: str) -> ServerMessage | None:
    """Read what a server sent; None if its type is unknown.

    Raises:
        BadMessage: As for `parse_client`.
    """
    return _parse(text, _SERVER)


def _parse(text: str, models: dict[str, type[M]]) -> M | None:
    try:
        fields: Any = from_json(text, allow_inf_nan=False)
    except ValueError:
        raise BadMessage("the text is no JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise BadMessage("the text is no JSON object with a type")
    model = models.get(fields["type"])
    if model is None:
        return None
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        known = model.model_fields
        field = str(first["loc"][0]) if first["loc"] else ""
        where = f" in field {field}" if field in known else ""
        kind = model.model_fields["type"].default
        raise BadMessage(f"{kind}: {first['type']}{where}") from None
