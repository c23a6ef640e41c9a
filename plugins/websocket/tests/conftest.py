"""A server on loopback with a session on a fake engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from talking_avatar import AvatarSession
from talking_avatar.testing import FakeEngine
from talking_avatar_websocket import (
    AvatarServer,
    Conversation,
    Features,
    Limits,
    Offering,
    Scene,
    Voice,
    WebsocketTransport,
)

FEATURES = Features(say_text=True, photo=True, audio_input=["pcm", "opus"])


@dataclass
class Stage:
    """What runs."""

    server: AvatarServer
    session: AvatarSession
    transport: WebsocketTransport
    conversation: Conversation

    @property
    def url(self) -> str:
        return self.server.socket_url


MakeStage = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
def stage() -> MakeStage:
    """Give what makes a running server, session and conversation."""

    @asynccontextmanager
    async def run(
        *,
        limits: Limits | None = None,
        voice: Voice | None = None,
        change_photo: Any = None,
        engine: Any = None,
        **server_options: Any,
    ) -> AsyncIterator[Stage]:
        options = {"offering": Offering(features=FEATURES), **server_options}
        async with AvatarServer(port=0, limits=limits, **options) as server:
            transport = WebsocketTransport(server)
            async with AvatarSession(
                "any",
                engine=engine or FakeEngine(width=128, height=192),
                transport=transport,
                pixel_format="i420",
                checks_capacity=False,
            ) as session:
                conversation = Conversation(
                    server, Scene(session, transport), voice=voice, change_photo=change_photo
                )
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(conversation.run)
                    try:
                        yield Stage(server, session, transport, conversation)
                    finally:
                        tasks.cancel_scope.cancel()

    return run
