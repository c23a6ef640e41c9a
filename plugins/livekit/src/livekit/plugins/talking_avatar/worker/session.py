"""One avatar in one room, from joining to leaving.

Takes a room's token. Gives the agent its character, a report each second and after each turn, and a
reason at the end: the agent left, the room is gone, the time is up, the engine failed, or it was
told to stop. What it holds is held no longer than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from livekit.agents.types import ATTRIBUTE_PUBLISH_ON_BEHALF
from livekit.rtc.participant import PublishDataError

from livekit import rtc
from talking_avatar import TurnResult
from talking_avatar.cost import Usage

from .._character import Character, CharacterEvents, Looks, first_of
from .._messages import TOPIC, Ended, EndReason, Report
from .._remote import WorkerError
from .._wire import AgentWire
from ..log import logger
from ..metrics import metrics_of

REPORT_EVERY_S = 1.0
AGENT_RETURNS_S = 10.0
"""An agent that lost its connection is waited for; then the avatar leaves, and its cost ends."""
_MOST_REPORTS = 64


class RoomSession:
    """See the module.

    Args:
        looks: Of the character.
        max_session_s: When it ends at the latest; None: never.
        on_over: Called when it has left.
    """

    def __init__(
        self, looks: Looks, *, max_session_s: float | None, on_over: Callable[[RoomSession], None]
    ) -> None:
        self._looks = looks
        self._max_session_s = max_session_s
        self._on_over = on_over
        self._room = rtc.Room()
        self._character: Character | None = None
        self._agent = ""
        self._reports: asyncio.Queue[Report] = asyncio.Queue(_MOST_REPORTS)
        self._ending: asyncio.Future[EndReason] | None = None
        self._left: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._usage = Usage()

    async def start(self, url: str, token: str) -> None:
        """Join, and return when the first frame is ready.

        Raises:
            WorkerError: The room could not be joined, or the token names no agent.
            TalkingAvatarError: There is no character of this photo, or no capacity for it.
        """
        loop = asyncio.get_running_loop()
        self._ending = loop.create_future()
        started: asyncio.Future[None] = loop.create_future()
        self._task = asyncio.create_task(self._run(url, token, started), name="talking_avatar.room")
        try:
            await asyncio.shield(started)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> Ended:
        """Leave, if it has not; tell what became of it."""
        self._end("stopped")
        assert self._ending is not None
        if self._task is not None:
            await asyncio.wait([self._task])
        return Ended(reason=self._ending.result(), usage=self._usage)

    def usage(self) -> Usage:
        """Give what was used so far."""
        return self._usage if self._character is None else self._character.usage()

    # -- the task that owns it

    async def _run(self, url: str, token: str, started: asyncio.Future[None]) -> None:
        try:
            wire = await self._join(url, token)
            async with asyncio.TaskGroup() as tasks:
                await self._live(wire, tasks, started)
        except Exception as error:
            if started.done():
                logger.exception("an avatar's session failed")
            else:
                started.set_exception(first_of(error))
                started.exception()  # whoever started it may have gone
            self._end("failed")
        finally:
            await self._leave()
            self._on_over(self)

    async def _live(
        self, wire: AgentWire, tasks: asyncio.TaskGroup, started: asyncio.Future[None]
    ) -> None:
        assert self._character is not None
        assert self._ending is not None
        helpers = [
            tasks.create_task(wire.run()),
            tasks.create_task(self._send_reports()),
            tasks.create_task(self._report_regularly()),
        ]
        await self._character.start()
        if not started.done():
            started.set_result(None)
        await asyncio.wait([self._ending], timeout=self._max_session_s)
        self._end("max_duration")
        await self._character.aclose()
        await self._send(Report(usage=self._character.usage(), ended=self._ending.result()))
        for helper in helpers:
            helper.cancel()

    async def _join(self, url: str, token: str) -> AgentWire:
        self._room.register_text_stream_handler("lk.transcription", _ignore)
        self._room.register_byte_stream_handler("lk.agent.session", _ignore)
        try:
            await self._room.connect(url, token)
        except rtc.ConnectError as error:
            raise WorkerError(f"the room could not be joined: {error}") from error
        self._agent = self._room.local_participant.attributes.get(ATTRIBUTE_PUBLISH_ON_BEHALF, "")
        if not self._agent:
            raise WorkerError(f"the token has no attribute {ATTRIBUTE_PUBLISH_ON_BEHALF!r}")
        self._room.on("disconnected", lambda reason: self._end("room_disconnected"))
        self._room.on("participant_disconnected", self._note_left)
        self._room.on("participant_connected", self._note_came)
        wire = AgentWire(self._room, self._agent)
        self._character = Character(
            self._room,
            self._looks,
            CharacterEvents(
                on_started=wire.note_started,
                on_finished=wire.note_finished,
                on_result=self._note_result,
                on_error=self._note_error,
            ),
        )
        wire.attach(self._character)
        return wire

    async def _leave(self) -> None:
        if self._left is not None:
            self._left.cancel()
        if self._character is not None:
            await self._character.aclose()
            self._usage = self._character.usage()
        await self._room.disconnect()

    def _end(self, reason: EndReason) -> None:
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(reason)

    # -- what happens in the room

    def _note_left(self, participant: rtc.RemoteParticipant) -> None:
        if participant.identity == self._agent and self._left is None:
            loop = asyncio.get_running_loop()
            self._left = loop.call_later(AGENT_RETURNS_S, self._end, "agent_left")

    def _note_came(self, participant: rtc.RemoteParticipant) -> None:
        if participant.identity == self._agent and self._left is not None:
            self._left.cancel()
            self._left = None

    def _note_result(self, result: TurnResult) -> None:
        assert self._character is not None
        usage = self._character.usage()
        turn = metrics_of(result, self._character.stats(), usage)
        self._report(Report(usage=usage, turn=turn))

    def _note_error(self, error: Exception, is_final: bool) -> None:
        self._report(Report(usage=self.usage(), error=str(error), is_final=is_final))
        if is_final:
            self._end("failed")

    # -- reports

    def _report(self, report: Report) -> None:
        if self._reports.full():
            self._reports.get_nowait()  # the newest says most
        self._reports.put_nowait(report)

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self._report(Report(usage=self.usage()))

    async def _send_reports(self) -> None:
        while True:
            await self._send(await self._reports.get())

    async def _send(self, report: Report) -> None:
        if self._agent not in self._room.remote_participants:
            return
        try:
            await self._room.local_participant.publish_data(
                report.model_dump_json(),
                destination_identities=[self._agent],
                topic=TOPIC,
            )
        except PublishDataError as error:  # the room is going down
            logger.debug("a report was not sent", extra={"reason": str(error)})


def _ignore(reader: object, sender: str) -> None:
    """Take a stream that is not for us, so that the library does not warn of it."""
