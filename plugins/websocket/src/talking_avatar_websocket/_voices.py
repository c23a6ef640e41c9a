"""Text into speech: the hook, and the voice that most machines can have.

Takes a text. Gives PCM, piece by piece. Never blocks the event loop, never puts a text on a command
line (where other users could read it) or in a log.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol, runtime_checkable

_WAV_HEADER_BYTES = 44
_ESPEAK_RATE = 22_050
_PIECE_BYTES = 8_192
_MAX_SPEECH_BYTES = 300 * 2 * _ESPEAK_RATE
"""Five minutes: more than a thousand characters ever take."""


class VoiceFailed(Exception):  # noqa: N818
    """A text could not be spoken; the text of the error says why and holds none of it."""


@runtime_checkable
class Voice(Protocol):
    """Speaks texts. Write one for your TTS: an attribute and a method.

    Attributes:
        sample_rate: Of what `speak` gives.
    """

    sample_rate: int

    def speak(self, text: str, language: str | None) -> AsyncIterator[bytes]:
        """Give int16 PCM, little-endian, mono, as it is made; an async generator will do.

        Closed early when the speech is interrupted.

        Args:
            text: Plain text.
            language: BCP 47 tag such as ``"en-GB"``; None: the voice's own.

        Raises:
            VoiceFailed: It cannot be spoken.
        """
        ...


class EspeakVoice:
    """Speaks through the program espeak-ng.

    Args:
        language: Of texts that state none.
        words_per_minute: 80 to 450.
        timeout_s: For one text.
    """

    sample_rate = _ESPEAK_RATE

    def __init__(
        self, language: str = "en-us", *, words_per_minute: int = 160, timeout_s: float = 20.0
    ) -> None:
        if not 80 <= words_per_minute <= 450:
            raise ValueError(f"words_per_minute {words_per_minute} must be 80 to 450")
        self._language = language
        self._words_per_minute = words_per_minute
        self._timeout_s = timeout_s

    @staticmethod
    def is_installed() -> bool:
        """Whether the program is there."""
        return shutil.which("espeak-ng") is not None

    async def speak(self, text: str, language: str | None) -> AsyncIterator[bytes]:
        """Give the speech of a text; see `Voice.speak`."""
        program = shutil.which("espeak-ng")
        if program is None:
            raise VoiceFailed("espeak-ng is not installed")
        process = await asyncio.create_subprocess_exec(
            program,
            "--stdin",
            "--stdout",
            "-v",
            (language or self._language).lower(),
            "-s",
            str(self._words_per_minute),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                await _write_all(process, text)
            async for piece in self._pieces(process):
                yield piece
        except TimeoutError:
            raise VoiceFailed(f"espeak-ng took more than {self._timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await process.wait()

    async def _pieces(self, process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
        assert process.stdout is not None
        until = asyncio.get_running_loop().time() + self._timeout_s
        num_bytes = 0
        async with asyncio.timeout_at(until):
            header = await _read_exactly(process.stdout, _WAV_HEADER_BYTES)
        if len(header) < _WAV_HEADER_BYTES:
            raise VoiceFailed("espeak-ng has no voice for this language, or nothing to say")
        while num_bytes < _MAX_SPEECH_BYTES:
            async with asyncio.timeout_at(until):
                piece = await _read_exactly(process.stdout, _PIECE_BYTES)
            if piece:
                yield piece
            if len(piece) < _PIECE_BYTES:
                return
            num_bytes += len(piece)
        raise VoiceFailed("espeak-ng did not end")


async def _write_all(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it ended: what it wrote says more
        process.stdin.write(text.encode("utf-8", "replace"))
        await process.stdin.drain()
    process.stdin.close()


async def _read_exactly(stream: asyncio.StreamReader, num_bytes: int) -> bytes:
    """Read so many bytes, or what is left."""
    try:
        return await stream.readexactly(num_bytes)
    except asyncio.IncompleteReadError as error:
        return error.partial


def default_voice() -> Voice | None:
    """Give espeak-ng if it is installed."""
    return EspeakVoice() if EspeakVoice.is_installed() else None
