"""One turn as its speaker sees it. Takes PCM in the stated format; gives one `TurnResult`.

Never decides what is shown: it tells the turn machine, by way of the conductor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from talking_avatar.audio import Encoding, Pcm, SpeechStream
from talking_avatar.engine.base import SAMPLE_RATE
from talking_avatar.errors import TurnClosed
from talking_avatar.session.sources import format_of, slices, stated_format
from talking_avatar.types import TurnResult

if TYPE_CHECKING:
    from talking_avatar.session.conductor import Conductor

MAX_BACKLOG_SAMPLES = 30 * SAMPLE_RATE
"""Speech that may wait to be shown before `Turn.push` waits: 30 s, 2.9 MB. A TTS runs ahead by
seconds; one that is minutes ahead of the voice gains nothing and fills memory."""


class Turn:
    """One turn of speech, pushed as it comes.

        async with session.turn(sample_rate=16_000) as turn:
            async for chunk in tts:
                await turn.push(chunk)
        result = await turn.result()

    Leaving the block ends the turn without waiting for it to be played; leaving it by an exception
    cuts the turn. When the turn is interrupted, `push` raises `TurnClosed`, which the block takes
    to itself: the program goes on after it, and the result says what was played.

    Made by `AvatarSession.turn`.
    """

    def __init__(
        self,
        conductor: Conductor,
        *,
        sample_rate: int | None,
        channels: int,
        encoding: Encoding,
        voice_agent_s: float | None,
    ) -> None:
        self._conductor = conductor
        self._stated = stated_format(sample_rate, channels, encoding)
        self._stream: SpeechStream | None = None
        self._has_ended = False
        self._result: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
        # A failure that nobody awaits is no news: the session raises it from every other call.
        self._result.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.turn_id = conductor.open_turn(self._result, voice_agent_s)

    @property
    def is_done(self) -> bool:
        """Whether the turn was played to its end, or cut."""
        return self._result.done()

    async def push(self, data: Pcm) -> None:
        """Add speech; returns when there is room for more.

        Args:
            data: Bytes or an array in the stated format, of any length.

        Raises:
            TurnClosed: The turn was ended or interrupted.
            AudioFormatError: It is not what was stated. Nothing of the piece was taken.
            EngineFailed: The engine failed; the session has ended.
        """
        self._check_open()
        if self._stream is None:
            self._stream = SpeechStream(format_of(data, self._stated))
        for number, piece in enumerate(slices(data, self._stream.format)):
            if number:
                await asyncio.sleep(0)  # so that long speech never holds the loop
                self._check_open()
            self._conductor.push(self.turn_id, self._stream.push(piece))
            await self._conductor.wait_for_room(self.turn_id, MAX_BACKLOG_SAMPLES)
            self._check_open()

    def _check_open(self) -> None:
        self._conductor.check_running()
        if not self._conductor.takes_speech(self.turn_id):
            how = "ended" if self._has_ended else "interrupted"
            raise TurnClosed(f"turn {self.turn_id} takes no more speech: it was {how}")

    async def flush(self) -> None:
        """Say what was pushed without waiting for more: the end of a sentence in a long turn.

        Harmless when the turn is over.
        """
        if self._stream is not None and self._conductor.takes_speech(self.turn_id):
            self._conductor.push(self.turn_id, self._stream.flush())
            self._stream = SpeechStream(self._stream.format)
            self._conductor.flush(self.turn_id)

    async def end(self) -> None:
        """No more speech comes. Does not wait for it to be played; harmless when repeated."""
        if self._conductor.takes_speech(self.turn_id):
            self._has_ended = True
            if self._stream is not None:
                self._conductor.push(self.turn_id, self._stream.flush())
            self._conductor.end(self.turn_id)

    async def result(self) -> TurnResult:
        """Wait until the turn is over. Cancelling the wait does not cut it.

        Raises:
            EngineFailed: The engine failed before the turn was over.
        """
        return await asyncio.shield(self._result)

    @asynccontextmanager
    async def leaving_when_over(self) -> AsyncIterator[None]:
        """Leave the block as soon as the turn is over, whatever it waits for by then.

        So that a synthesis that gives nothing more does not hold back who was interrupted. What
        waits in the block is cancelled once, and may clean up.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as leaving:
                is_inside = True

                def leave(_: object) -> None:
                    if is_inside:
                        leaving.reschedule(loop.time())

                self._result.add_done_callback(leave)
                try:
                    yield
                finally:
                    is_inside = False
                    self._result.remove_done_callback(leave)
        except TimeoutError:
            if not leaving.expired():
                raise

    def cut(self) -> None:
        """End this turn now, and no other; at once, without waiting."""
        self._conductor.cut((self.turn_id,))

    async def __aenter__(self) -> Turn:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if exc is None:
            await self.end()
            return False
        was_interrupted = isinstance(exc, TurnClosed) and not self._has_ended
        self.cut()
        return was_interrupted
