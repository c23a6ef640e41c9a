"""A session on a fake engine that is quick, and one that makes chunks of four frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from talking_avatar.session import AvatarSession
from talking_avatar.testing import FakeEngine, FakeStream, RecordingTransport

ENGINES: dict[str, dict[str, Any]] = {
    "portrait": {"step_s": 0.015},
    "diffusion": {
        "step_s": 0.150,
        "decode_s": 0.100,
        "frames_per_chunk": 4,
        "pipeline_depth": 2,
    },
}


@dataclass
class Stage:
    """A running session and what it was made with."""

    session: AvatarSession
    engine: FakeEngine
    transport: RecordingTransport

    @property
    def stream(self) -> FakeStream:
        return self.engine.streams[0]


OpenStage = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture(params=list(ENGINES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_stage(kind: str) -> OpenStage:
    """Give a context manager that runs a session on a fake of each kind of engine."""

    @asynccontextmanager
    async def open_(
        transport: RecordingTransport | None = None, *, clock: str = "live", **engine: Any
    ) -> AsyncIterator[Stage]:
        transport = transport or RecordingTransport()
        fake = FakeEngine(**{**ENGINES[kind], **engine})
        session = AvatarSession("any", engine=fake, transport=transport, clock=clock)  # type: ignore[arg-type]
        async with session:
            yield Stage(session, fake, transport)

    return open_
