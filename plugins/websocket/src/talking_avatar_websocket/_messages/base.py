"""What all control messages have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

VERSION = 1
"""Of the protocol. A change that an older peer would misread makes it 2."""

Micros = Annotated[int, Field(ge=-(2**62), le=2**62)]
Count = Annotated[int, Field(ge=0, le=2**62)]
StreamNumber = Annotated[int, Field(ge=0, le=2**32 - 1)]
RequestId = Annotated[str, Field(max_length=64)]


class BadMessage(ValueError):  # noqa: N818
    """A message is known and wrong; the text names its type and field and nothing else of it."""


class Message(BaseModel):
    """Base of all control messages."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", strict=True, allow_inf_nan=False, ser_json_inf_nan="null"
    )

    def to_text(self) -> str:
        """Give the JSON text."""
        return self.model_dump_json(exclude_none=False)
