"""What an agent and its worker say to each other beside LiveKit's own protocol.

Over HTTP: a session is asked for and ended. Over the room's data packets: what each turn took, and
what the session has used. Never carries a secret but the room's token, and that only to the worker.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from talking_avatar.cost import Usage

from .metrics import TurnMetrics

TOPIC = "talking_avatar.report"
"""Of the data packets."""
MOST_PHOTO_BYTES = 20_000_000

EndReason = Literal["stopped", "agent_left", "room_disconnected", "max_duration", "failed"]


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_bytes="base64")


class Launch(_Message):
    """Asks for a session: ``POST /sessions``.

    Attributes:
        url: Of the LiveKit server.
        token: Of the avatar's participant, for one room.
        photo: An image file in base64; None: the one the worker was started with.
        face: Index of the face to take when the photo has several.
        seed: Of the character's own motion.
    """

    url: str
    token: str = Field(repr=False)
    photo: str | None = Field(None, repr=False)
    face: int | None = None
    seed: int = 0


class Launched(_Message):
    """Its first frame is ready."""

    session_id: str


class Refusal(_Message):
    """Why there is none.

    Attributes:
        error: Name of the error of this package, or what else it was.
        message: Its text.
    """

    error: str
    message: str


class Ended(_Message):
    """What became of a session: the answer to ``DELETE /sessions/{id}``."""

    reason: EndReason
    usage: Usage


class Report(_Message):
    """A data packet to the agent.

    Attributes:
        usage: So far.
        turn: Of the turn that ended just now, if one did.
        error: What the engine failed of just now, if it did.
        is_final: Whether it is given up.
        ended: Why the session ends now, if it does.
    """

    usage: Usage
    turn: TurnMetrics | None = None
    error: str | None = None
    is_final: bool = False
    ended: EndReason | None = None
