"""One character in a room, kept alive: a session, its tracks, and who speaks through it.

Takes a photo, an engine and segments of speech. Gives two published tracks, the end of each
segment, and what it all cost. Used in the agent's process and in the worker alike; never knows
agents.

When the engine fails, the segment that was being said is finished as interrupted and the character
starts again with the next; after `MAX_RESTARTS` it is given up. When nobody is there for a while
the session is closed, and its cost ends; it is opened again for whoever comes, and for speech.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from livekit import rtc
from talking_avatar import AvatarSession, EngineConfig, TurnResult
from talking_avatar.cost import Usage
from talking_avatar.engine.base import Engine, Photo
from talking_avatar.errors import SessionClosed, SessionError
from talking_avatar.stats import SessionStats

from ._audience import Audience
from ._speaker import Speaker, SpeakerEvents
from ._tracks import RoomTransport
from ._usage import sum_of
from .log import logger

MAX_RESTARTS = 3
"""An engine that fails a fourth time will fail again."""
SLEEP_AFTER_S = 30.0
"""Longer than a reload of a page or a change of networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Whose face it is, and who animates it.

    Attributes:
        photo: Path, bytes of an image file, or RGB array.
        engine: Name, configuration, or an open engine, which then stays open.
        face: Index of the face to take when the photo has several.
        seed: Of its own motion.
        checks_capacity: Refuse to start what the cores of this process do not hold.
        sleep_after_s: How long nobody must be there before it rests; None: it never does.
    """

    photo: Photo
    engine: str | EngineConfig | Engine = "portrait"
    face: int | None = None
    seed: int = 0
    checks_capacity: bool = True
    sleep_after_s: float | None = SLEEP_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterEvents:
    """Who is told.

    Attributes:
        on_started, on_finished, on_result: As in `SpeakerEvents`.
        on_error: The engine failed; and whether the character is given up.
    """

    on_started: Callable[[], None]
    on_finished: Callable[[float, bool], None]
    on_result: Callable[[TurnResult], None]
    on_error: Callable[[Exception, bool], None]


class Character:
    """See the module. `start` and `aclose` may be called in different tasks.

    Args:
        room: Where it appears; connected now or later, and never closed here.
        looks: Of the character.
        events: Who is told.
    """

    def __init__(self, room: rtc.Room, looks: Looks, events: CharacterEvents) -> None:
        self._room = room
        self._looks = looks
        self._events = events
        self._used: list[Usage] = []
        self._stats = SessionStats()
        self._session: AvatarSession | None = None
        self._transport: RoomTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._audience = Audience(room)
        self.speaker = Speaker(
            SpeakerEvents(
                on_started=events.on_started,
                on_finished=events.on_finished,
                on_result=events.on_result,
            )
        )

    async def start(self) -> None:
        """Open the engine, make the character of the photo, publish once the room is connected.

        Returns when the first frame is ready. Cancelled, or failed, it leaves nothing behind.

        Raises:
            PhotoError: The photo cannot become a character.
            AtCapacity: The cores do not hold one more.
            SessionClosed: It was closed meanwhile.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._own(started), name="talking_avatar.character")
        try:
            await asyncio.shield(started)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Finish every segment, take the tracks out of the room, release the engine. Idempotent."""
        self._audience.close()
        self.speaker.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def clear(self) -> None:
        """Cut what is said and what waits: the sound ends now, each segment is reported."""
        self.speaker.clear()  # first: the positions are those before the queue is emptied
        if self._transport is not None:
            self._transport.clear()

    async def pause(self) -> None:
        """Fall silent, and begin nothing new, until `resume`."""
        self.speaker.hold()
        if self._session is not None:
            with suppress(SessionError):  # it is ending, and what it says with it
                await self._session.pause()

    async def resume(self) -> None:
        """Go on with the sample after the last one that was said."""
        self.speaker.release()
        if self._session is not None:
            with suppress(SessionError):
                await self._session.resume()

    @property
    def session(self) -> AvatarSession | None:
        """The core's session, while there is one: for gestures, controls and whatever else."""
        return self._session

    def usage(self) -> Usage:
        """Give what was used so far, restarts included."""
        now = [] if self._session is None else [self._session.usage()]
        return sum_of([*self._used, *now])

    def stats(self) -> SessionStats:
        """Give how steady the present session runs, or the last one ran."""
        return self._stats if self._session is None else self._session.stats()

    # -- the task that owns it all

    async def _own(self, started: asyncio.Future[None]) -> None:
        try:
            num_left = MAX_RESTARTS
            while num_left >= 0:
                try:
                    await self._live(started)
                    await self._wait_until_wanted()
                except Exception as error:
                    failure = first_of(error)
                    if not started.done():
                        started.set_exception(failure)
                        return
                    self._report(failure, is_final=not num_left)
                    num_left -= 1
        finally:
            self.speaker.close()
            if not started.done():
                started.set_exception(SessionClosed("the avatar was closed while it started"))

    async def _live(self, started: asyncio.Future[None]) -> None:
        """Run one session until nobody is there for it, it fails, or this is cancelled."""
        transport = RoomTransport(self._room, self.speaker.note_heard)
        session = AvatarSession(
            self._looks.photo,
            engine=self._looks.engine,
            transport=transport,
            face=self._looks.face,
            seed=self._looks.seed,
            pixel_format="i420",
            checks_capacity=self._looks.checks_capacity,
        )
        async with AsyncExitStack() as stack:
            stack.callback(self._retire, session)
            await stack.enter_async_context(session)
            self._session, self._transport = session, transport
            if not started.done():
                started.set_result(None)
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self.speaker.serve(session))
                await self._wait_until_deserted()
                serving.cancel()

    async def _wait_until_deserted(self) -> None:
        """Wait until nobody has been there for a while, and nothing is being said."""
        if self._looks.sleep_after_s is None:
            await asyncio.get_running_loop().create_future()  # never
        while True:
            await self._audience.wait_until(False)
            try:
                async with asyncio.timeout(self._looks.sleep_after_s):
                    await self._audience.wait_until(True)
            except TimeoutError:
                if not self.speaker.num_open:
                    return

    async def _wait_until_wanted(self) -> None:
        """Wait until somebody is there, or there is something to say."""
        reasons = [
            asyncio.ensure_future(self._audience.wait_until(True)),
            asyncio.ensure_future(self.speaker.wait_for_speech()),
        ]
        try:
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()

    def _retire(self, session: AvatarSession) -> None:
        self._session = self._transport = None
        self._stats = session.stats()
        self._used.append(session.usage())

    def _report(self, error: Exception, *, is_final: bool) -> None:
        logger.error(
            "the avatar failed and %s",
            "is given up" if is_final else "starts again",
            exc_info=error,
        )
        self._events.on_error(error, is_final)


def first_of(error: Exception) -> Exception:
    """Give what failed first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
