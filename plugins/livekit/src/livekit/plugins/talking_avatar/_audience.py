"""Whether anybody is there to see the avatar. Takes comings and goings; decides nothing."""

from __future__ import annotations

import asyncio

from livekit.agents.types import ATTRIBUTE_PUBLISH_ON_BEHALF

from livekit import rtc

_EVENTS: tuple[rtc.room.EventTypes, ...] = (
    "participant_connected",
    "participant_disconnected",
    "connection_state_changed",
)


class Audience:
    """Everyone in a room who is neither an agent nor somebody's avatar.

    A room that is not connected yet counts as watched: somebody is about to come.
    """

    def __init__(self, room: rtc.Room) -> None:
        self._room = room
        self._changed = asyncio.Event()
        for event in _EVENTS:
            room.on(event, self._note)

    def close(self) -> None:
        """Look away."""
        for event in _EVENTS:
            self._room.off(event, self._note)

    @property
    def is_there(self) -> bool:
        """Whether somebody is there."""
        if not self._room.isconnected():
            return True
        return any(_watches(person) for person in self._room.remote_participants.values())

    async def wait_until(self, is_there: bool) -> None:
        """Wait until somebody, or nobody, is there."""
        while self.is_there != is_there:
            self._changed.clear()
            await self._changed.wait()

    def _note(self, *_: object) -> None:
        self._changed.set()


def _watches(person: rtc.RemoteParticipant) -> bool:
    is_agent = person.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT
    return not is_agent and ATTRIBUTE_PUBLISH_ON_BEHALF not in person.attributes
