"""The character in the agent's own process and under the agent's own identity."""

from __future__ import annotations

from collections.abc import Callable

from livekit.agents import get_job_context
from livekit.agents.voice.io import AudioOutput

from livekit import rtc
from talking_avatar import TurnResult
from talking_avatar.cost import Usage
from talking_avatar.stats import SessionStats

from ._character import Character, CharacterEvents, Looks
from ._sink import AvatarAudioOutput
from .metrics import TurnMetrics, metrics_of


class LocalHost:
    """Renders here.

    Args:
        room: The agent's own.
        looks: Of the character.
        on_turn: Told of every turn that is over.
        on_error: Told when the engine failed, and whether the character is given up.
    """

    def __init__(
        self,
        room: rtc.Room,
        looks: Looks,
        *,
        on_turn: Callable[[TurnMetrics], None],
        on_error: Callable[[Exception, bool], None],
    ) -> None:
        self._room = room
        sink = self._sink = AvatarAudioOutput()
        events = CharacterEvents(
            on_started=sink.note_started,
            on_finished=sink.note_finished,
            on_result=lambda result: on_turn(self.metrics_of(result)),
            on_error=on_error,
        )
        self.character = Character(room, looks, events)
        sink.attach(self.character)

    @property
    def identity(self) -> str:
        """The agent's: its tracks are the avatar's."""
        if self._room.isconnected():
            return self._room.local_participant.identity
        job = get_job_context(required=False)
        return "" if job is None else job.local_participant_identity

    @property
    def sink(self) -> AudioOutput:
        return self._sink

    async def start(self, credentials: object = None) -> None:
        """Start the character; the room needs no credentials but the agent's own."""
        await self.character.start()

    async def aclose(self) -> None:
        await self.character.aclose()

    def metrics_of(self, result: TurnResult) -> TurnMetrics:
        return metrics_of(result, self.character.stats(), self.character.usage())

    def usage(self) -> Usage:
        return self.character.usage()

    def stats(self) -> SessionStats:
        return self.character.stats()
