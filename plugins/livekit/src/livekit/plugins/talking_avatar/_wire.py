"""The worker's end of LiveKit's avatar protocol: speech in, reports out.

Takes byte streams on ``lk.audio_stream``, one a segment, and the call ``lk.clear_buffer``.
Gives a character its segments, and the agent ``lk.playback_started`` and ``lk.playback_finished``:
exactly one for each stream, from its header on. That count is why it is not LiveKit's own receiver:
a stream that was cleared before its first byte was read leaves no trace there, and the agent waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from livekit.rtc.data_stream import StreamError

from livekit import rtc

from ._character import Character
from .log import logger

AUDIO_TOPIC = "lk.audio_stream"
CLEAR = "lk.clear_buffer"
STARTED = "lk.playback_started"
FINISHED = "lk.playback_finished"
SILENT_S = 10.0
"""A stream from which nothing comes for so long has lost its end; LiveKit's own figure."""
_TRIES = 3
_RETRY_S = 0.1
_MOST_REPORTS = 256
"""Waiting to be sent: as many segments as nobody has open."""


class AgentWire:
    """Between one agent in a room and one character.

    Args:
        room: Connected.
        agent: Identity of the agent; everyone else is ignored.
    """

    def __init__(self, room: rtc.Room, agent: str) -> None:
        self._room = room
        self._agent = agent
        self._character: Character | None = None
        self._reading: rtc.ByteStreamReader | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._reports: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_MOST_REPORTS)

    def attach(self, character: Character) -> None:
        """Take calls and streams from now on, for this character."""
        self._character = character
        self._room.register_byte_stream_handler(AUDIO_TOPIC, self._take_stream)
        self._room.local_participant.register_rpc_method(CLEAR, self._clear)

    async def run(self) -> None:
        """Send reports, in order, until cancelled."""
        try:
            while True:
                method, payload = await self._reports.get()
                await self._call(method, payload)
        finally:
            for task in self._readers:
                task.cancel()

    def note_started(self) -> None:
        """The first sample of a segment is heard."""
        self._report(STARTED, "")

    def note_finished(self, heard_s: float, interrupted: bool) -> None:
        """A segment is over."""
        payload = {"playback_position": heard_s, "interrupted": interrupted}
        self._report(FINISHED, json.dumps(payload))

    def _report(self, method: str, payload: str) -> None:
        try:
            self._reports.put_nowait((method, payload))
        except asyncio.QueueFull:
            logger.warning("the agent takes no reports", extra={"method": method})

    async def _call(self, method: str, payload: str) -> None:
        """Call the agent; one that has gone will not miss it."""
        for num_left in reversed(range(_TRIES)):
            if self._agent not in self._room.remote_participants:
                return
            try:
                await self._room.local_participant.perform_rpc(
                    destination_identity=self._agent, method=method, payload=payload
                )
                return
            except rtc.RpcError as error:
                if error.code == rtc.RpcError.ErrorCode.UNSUPPORTED_METHOD or not num_left:
                    logger.warning(
                        "the agent did not take a report",
                        extra={"method": method, "code": error.code},
                    )
                    return
                await asyncio.sleep(_RETRY_S)

    # -- what the agent sends

    async def _clear(self, call: rtc.RpcInvocationData) -> str:
        if call.caller_identity != self._agent or self._character is None:
            return "reject"
        self._reading = None
        self._character.clear()
        self._character.speaker.end()
        return "ok"

    def _take_stream(self, reader: rtc.ByteStreamReader, sender: str) -> None:
        if sender != self._agent or self._character is None:
            return
        stated = reader.info.attributes or {}
        try:
            format_ = int(stated["sample_rate"]), int(stated["num_channels"])
        except (KeyError, ValueError):
            logger.warning("a stream of speech states no format", extra={"stated": sorted(stated)})
            return
        self._reading = reader  # one that is still open has lost its end
        self._character.speaker.begin(*format_)
        task = asyncio.get_running_loop().create_task(self._read(reader, *format_))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def _read(self, reader: rtc.ByteStreamReader, rate: int, channels: int) -> None:
        assert self._character is not None
        speaker = self._character.speaker
        rest, size = b"", 2 * channels
        async for data in _until_silent(reader):
            if self._reading is not reader:
                return
            data = rest + data
            num = len(data) // size
            rest = data[num * size :]
            if num:
                await speaker.push(rtc.AudioFrame(data[: num * size], rate, channels, num))
        if self._reading is reader:
            self._reading = None
            speaker.end()


async def _until_silent(reader: rtc.ByteStreamReader) -> AsyncIterator[bytes]:
    """Give what comes until the stream ends, or nothing has come for `SILENT_S`."""
    while True:
        try:
            async with asyncio.timeout(SILENT_S):
                data = await anext(reader)
        except (StopAsyncIteration, StreamError):  # its end, or the agent's
            return
        except TimeoutError:
            logger.warning("a stream of speech lost its end", extra={"silent_s": SILENT_S})
            return
        yield data
