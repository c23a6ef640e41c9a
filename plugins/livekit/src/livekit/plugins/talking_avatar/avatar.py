"""`AvatarSession`: the avatar of a LiveKit agent, as every avatar plugin has one.

    avatar = talking_avatar.AvatarSession(photo="face.jpg")
    await avatar.start(session, room=ctx.room)
    await session.start(agent=agent, room=ctx.room)

Takes an `AgentSession` and a room. Replaces the end of the agent's audio chain, so that what the
agent says is said by the character. Renders in this process, or asks a worker for it.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from livekit.agents import AgentSession
from livekit.agents.types import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectOptions,
    NotGivenOr,
)
from livekit.agents.utils import is_given
from livekit.agents.voice.avatar import AvatarSession as BaseAvatarSession
from livekit.agents.voice.io import AudioOutput

from livekit import rtc
from talking_avatar import AvatarSession as CoreSession
from talking_avatar import EngineConfig
from talking_avatar.cost import Usage
from talking_avatar.engine.base import Engine, Photo
from talking_avatar.errors import SessionError
from talking_avatar.stats import SessionStats

from ._character import SLEEP_AFTER_S, Looks
from ._local import LocalHost
from ._remote import Credentials, RemoteHost, Worker
from .metrics import PROVIDER, TurnMetrics

DEFAULT_IDENTITY = "talking-avatar-agent"
"""Of a worker's participant. In the agent's process the avatar is the agent."""

AvatarEvent = Literal["error", "ended"]


class AvatarSession(BaseAvatarSession[AvatarEvent]):
    """The avatar of one `AgentSession`.

    Events: ``metrics_collected`` with LiveKit's `AvatarMetrics` and, for each turn, `TurnMetrics`;
    ``error`` with ``(exception, is_final)`` when the engine failed: what was being said is finished
    as interrupted, and unless ``is_final`` the avatar starts again by itself; ``ended`` with the
    reason, when a worker ended the session: ``"max_duration"``, ``"room_disconnected"``...

    Args:
        photo: Path, bytes of an image file, or RGB array.
        engine: Name of an engine, its `EngineConfig`, or an open one, which then stays open and may
            serve other avatars.
        face: Index of the face to take when the photo has several.
        seed: Of the character's own motion.
        checks_capacity: Refuse to start what the cores of this process do not hold.
        sleep_after_s: Once nobody but agents has been in the room for so long, its session is
            closed and costs nothing; it is opened again for whoever comes, and for speech. None:
            it stays open. An engine that takes long to open should be passed in open.
        worker_url: Render there instead: ``http://host:port`` of
            ``python -m livekit.plugins.talking_avatar.worker``. Its engine is its own.
        worker_token: What the worker was started with; never leaves for anyone else.
        avatar_participant_identity, avatar_participant_name: Of the worker's participant.
        conn_options: Retries and time limit of requests to the worker.
    """

    def __init__(
        self,
        *,
        photo: Photo,
        engine: str | EngineConfig | Engine = "portrait",
        face: int | None = None,
        seed: int = 0,
        checks_capacity: bool = True,
        sleep_after_s: float | None = SLEEP_AFTER_S,
        worker_url: str | None = None,
        worker_token: str | None = None,
        avatar_participant_identity: NotGivenOr[str] = NOT_GIVEN,
        avatar_participant_name: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> None:
        super().__init__()
        self._looks = Looks(
            photo=photo,
            engine=engine,
            face=face,
            seed=seed,
            checks_capacity=checks_capacity,
            sleep_after_s=sleep_after_s,
        )
        self._worker_url = worker_url
        self._worker_token = worker_token
        self._identity = (
            avatar_participant_identity
            if is_given(avatar_participant_identity)
            else DEFAULT_IDENTITY
        )
        self._name = (
            avatar_participant_name if is_given(avatar_participant_name) else self._identity
        )
        self._conn_options = conn_options
        self._host: LocalHost | RemoteHost | None = None
        self._replaced: AudioOutput | None = None

    @property
    def avatar_identity(self) -> str:
        """Of the participant whose tracks show the avatar."""
        if self._worker_url is not None or self._host is None:
            return self._identity
        return self._host.identity

    @property
    def provider(self) -> str:
        return PROVIDER

    # -- lifecycle

    async def start(
        self,
        agent_session: AgentSession[Any],
        room: rtc.Room,
        *,
        livekit_url: NotGivenOr[str] = NOT_GIVEN,
        livekit_api_key: NotGivenOr[str] = NOT_GIVEN,
        livekit_api_secret: NotGivenOr[str] = NOT_GIVEN,
    ) -> None:
        """Show the avatar: before or after ``agent_session.start``.

        What the agent says while the engine starts is kept and said. Returns when the first frame
        is ready; the tracks are published once the room is connected, see `wait_for_join`.

        Args:
            agent_session: Whose speech it speaks.
            room: Where it appears.
            livekit_url: For the worker's token; else from ``LIVEKIT_URL``. Not needed, like the
                next two, in the agent's own process.
            livekit_api_key: Else from ``LIVEKIT_API_KEY``.
            livekit_api_secret: Else from ``LIVEKIT_API_SECRET``.

        Raises:
            PhotoError: The photo cannot become a character.
            AtCapacity: This process, or the worker, does not hold one more.
            TalkingAvatarError: Anything else that made it impossible; all of it is undone.
        """
        if self._host is not None:
            raise SessionError("this avatar was started before: make a new one")
        credentials = self._credentials(livekit_url, livekit_api_key, livekit_api_secret)
        self._host = self._make_host(room)
        await super().start(agent_session, room)
        self._replaced = _tail_of(agent_session)
        agent_session.output.replace_audio_tail(self._host.sink)
        try:
            await self._host.start(credentials)
        except BaseException:
            await self._undo(agent_session)
            raise

    def _make_host(self, room: rtc.Room) -> LocalHost | RemoteHost:
        if self._worker_url is None:
            return LocalHost(room, self._looks, on_turn=self._note_turn, on_error=self._note_error)
        return RemoteHost(
            room,
            self._looks,
            Worker(self._worker_url, self._worker_token, self._conn_options),
            identity=self._identity,
            name=self._name,
            on_turn=self._note_turn,
            on_error=self._note_error,
            on_ended=self._note_ended,
        )

    def _credentials(
        self,
        url: NotGivenOr[str],
        api_key: NotGivenOr[str],
        api_secret: NotGivenOr[str],
    ) -> Credentials | None:
        """Give what a worker's token is made with; None where nobody needs one."""
        if self._worker_url is None:
            return None
        found = {
            "LIVEKIT_URL": url,
            "LIVEKIT_API_KEY": api_key,
            "LIVEKIT_API_SECRET": api_secret,
        }
        values = [value or os.environ.get(name, "") for name, value in found.items()]
        if missing := [name for name, value in zip(found, values, strict=True) if not value]:
            raise ValueError(
                f"a worker needs a token of the room: set {', '.join(missing)}, or pass "
                "livekit_url=..., livekit_api_key=..., livekit_api_secret=... to start()"
            )
        return Credentials(*values)

    async def _undo(self, agent_session: AgentSession[Any]) -> None:
        """Give the agent its own voice back."""
        assert self._host is not None
        await self.aclose()
        if _tail_of(agent_session) is self._host.sink:
            if self._replaced is None:
                agent_session.output.audio = None
            else:
                agent_session.output.replace_audio_tail(self._replaced)

    async def aclose(self) -> None:
        """Finish what is being said as interrupted, take the avatar away, release the engine.

        Idempotent. The agent stays in the room, whose participant the avatar may be. Until another
        avatar, or output, takes its place, what the agent says is dropped and reported as
        interrupted.
        """
        room = self._room
        if room is not None and self._worker_url is None:
            # The base class would remove the avatar's participant: here that is the agent itself.
            room.off("connection_state_changed", self._on_connection_state_changed)
            self._room = None
        try:
            if self._host is not None:
                await self._host.aclose()
        finally:
            await super().aclose()

    # -- what is known

    @property
    def session(self) -> CoreSession | None:
        """The character's own session, for gestures and controls.

        None while there is none, and for an avatar that a worker shows.
        """
        return self._host.character.session if isinstance(self._host, LocalHost) else None

    def usage(self) -> Usage:
        """Give what the avatar used so far; also after `aclose`."""
        return Usage() if self._host is None else self._host.usage()

    def gpu_hours(self) -> float:
        """Give the GPU-hours that the avatar held so far; 0.0 without a GPU."""
        return self.usage().gpu_hours

    def stats(self) -> SessionStats:
        """Give how steady it runs."""
        return SessionStats() if self._host is None else self._host.stats()

    # -- events

    def _note_turn(self, metrics: TurnMetrics) -> None:
        if self._agent_session is not None:
            self._emit_metrics(metrics)

    def _note_error(self, error: Exception, is_final: bool) -> None:
        self.emit("error", error, is_final)

    def _note_ended(self, reason: str) -> None:
        self.emit("ended", reason)


def _tail_of(agent_session: AgentSession[Any]) -> AudioOutput | None:
    """Give the last output of the agent's audio chain."""
    output = agent_session.output.audio
    while output is not None and output.next_in_chain is not None:
        output = output.next_in_chain
    return output
