"""The agent's audio output: what LiveKit's agents speak into.

Takes frames, flushes, clears and pauses as `AgentSession` sends them: an interruption comes as
flush, clear, clear. Owes exactly one ``playback_finished`` for each segment captured, whatever
happens. Every call but `capture_frame` returns at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities

from livekit import rtc

from ._character import Character


class AvatarAudioOutput(AudioOutput):
    """Speaks through a character.

    Takes any sample rate and channel count: the session resamples, exactly to the sample and
    without the 15 to 37 ms that LiveKit's resampler holds back.
    """

    def __init__(self) -> None:
        super().__init__(label="TalkingAvatar", capabilities=AudioOutputCapabilities(pause=True))
        self._character: Character | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, character: Character) -> None:
        """Speak through this one; before the first frame comes."""
        self._character = character

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        await self._speaking.speaker.push(frame)

    def flush(self) -> None:
        super().flush()
        self._speaking.speaker.end()

    def clear_buffer(self) -> None:
        self._speaking.clear()

    def pause(self) -> None:
        super().pause()
        self._soon(self._speaking.pause())

    def resume(self) -> None:
        super().resume()
        self._soon(self._speaking.resume())

    def note_started(self) -> None:
        """The first sample of the segment is heard."""
        self.on_playback_started(created_at=time.time())

    def note_finished(self, heard_s: float, interrupted: bool) -> None:
        """A segment is over."""
        self.on_playback_finished(playback_position=heard_s, interrupted=interrupted)

    @property
    def _speaking(self) -> Character:
        assert self._character is not None
        return self._character

    def _soon(self, work: Coroutine[None, None, None]) -> None:
        """Do it in the order of the calls: tasks of one loop begin in the order of creation."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
