"""What viewers ask for, as an application gets it from `AvatarServer.events`.

Takes what connections understood. Gives frozen values, in order, from a bounded queue. Sound that
nobody takes is dropped, newest first, past two seconds; nothing else is dropped silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

MAX_EVENTS = 256
"""More than a speaker may send in ten seconds: who takes none for that long is not listening."""
MAX_SOUND_SAMPLES = 2 * 48_000
"""Samples that wait: an application that is two seconds behind is no conversation."""


@dataclass(frozen=True, slots=True)
class InterruptAsked:
    """The speaker wants silence: call `AvatarSession.interrupt`."""

    viewer: int


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """The speaker wants a pause: call `AvatarSession.pause`."""

    viewer: int


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """The speaker wants the speech to go on: call `AvatarSession.resume`."""

    viewer: int


@dataclass(frozen=True, slots=True)
class TextCame:
    """The speaker wants a text to be spoken.

    Attributes:
        viewer: Its number.
        text: At most the limit's characters.
        language: BCP 47 tag, or None.
        request_id: Of the client, for the answer.
    """

    viewer: int
    text: str
    language: str | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The speaker's microphone is open; its sound has that rate, mono."""

    viewer: int
    sample_rate: int


@dataclass(frozen=True, slots=True, eq=False)
class SpeechCame:
    """Sound of the speaker's microphone, int16 (n,), mono."""

    viewer: int
    samples: npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The speaker's microphone is closed, or the speaker has lost the floor."""

    viewer: int


@dataclass(frozen=True, slots=True, repr=False)
class PhotoCame:
    """The speaker wants another character.

    Attributes:
        viewer: Its number.
        data: An image file, unchecked.
        face: Index of the face to take; None: there should be one only.
    """

    viewer: int
    data: bytes
    face: int | None


ViewerEvent: TypeAlias = (
    InterruptAsked
    | PauseAsked
    | ResumeAsked
    | TextCame
    | SpeechBegan
    | SpeechCame
    | SpeechEnded
    | PhotoCame
)
"""What an application may get."""


class EventQueue:
    """Events on their way to an application: ``async for event in server.events()``.

    Attributes:
        num_dropped_samples: Samples that the application was too slow for.
    """

    def __init__(self) -> None:
        self._events: deque[ViewerEvent] = deque()
        self._num_samples = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        self.num_dropped_samples = 0

    def put(self, event: ViewerEvent) -> bool:
        """Add an event; False if there is no room."""
        if isinstance(event, SpeechCame):
            if self._num_samples + len(event.samples) > MAX_SOUND_SAMPLES:
                self.num_dropped_samples += len(event.samples)
                return False
            self._num_samples += len(event.samples)
        elif len(self._events) >= MAX_EVENTS and not isinstance(event, SpeechEnded):
            return False
        self._events.append(event)
        self._changed.set()
        return True

    def close(self) -> None:
        """Nothing comes any more."""
        self._is_closed = True
        self._changed.set()

    def __aiter__(self) -> EventQueue:
        return self

    async def __anext__(self) -> ViewerEvent:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if isinstance(event, SpeechCame):
            self._num_samples -= len(event.samples)
        return event
