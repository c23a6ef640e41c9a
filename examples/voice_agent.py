"""A voice agent with a face, without any account: listens, answers, can be interrupted.

    python examples/voice_agent.py                      # a recorded user talks to it
    python examples/voice_agent.py --wav question.wav   # your recording does
    python examples/voice_agent.py --microphone         # you do: pip install sounddevice

What it says is scripted, so that nothing but the conversation is shown: voice activity decides
whose turn it is, speech synthesis streams into `Turn.push`, and the user may barge in. A sound
while the avatar speaks pauses it at once; if it lasts, the turn is cut, else it goes on.
espeak-ng speaks where it is installed, the bundled recording elsewhere. The conversation is
written to a video file; for each answer the parts of its latency are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from talking_avatar import AvatarSession, FileTransport, Turn, TurnResult
from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.media import decode_file

RATE = 24_000
CHUNK_S = 0.020
REPLIES = (
    "Good morning. I am a photograph, and I have been waiting for somebody to talk to.",
    "That is a good question. Give me a moment, and I will make up an answer for you.",
    "You may interrupt me at any time. I stop within one frame, and I never mind.",
)

Chunk = npt.NDArray[np.float32]
Synthesize = Callable[[str], "AsyncIterator[bytes | Chunk]"]


# -- whose turn it is


@dataclass(slots=True)
class VoiceActivity:
    """Tells speech from silence by its level, in chunks of 20 ms.

    Attributes:
        threshold_db: Root mean square above which a chunk is loud.
        start_s: Loud for so long: somebody began to speak.
        end_s: Quiet for so long: they have finished.
    """

    threshold_db: float = -38.0
    start_s: float = 0.06
    end_s: float = 0.5
    is_speaking: bool = False
    quiet_s: float = 0.0
    loud_s: float = 0.0

    def hear(self, chunk: Chunk) -> Literal["started", "ended"] | None:
        """Take the next chunk; tell what has changed with it."""
        level_db = 10 * np.log10(np.mean(np.square(chunk, dtype=np.float64)) + 1e-12)
        if level_db > self.threshold_db:
            self.loud_s, self.quiet_s = self.loud_s + CHUNK_S, 0.0
        else:
            self.loud_s, self.quiet_s = 0.0, self.quiet_s + CHUNK_S
        if not self.is_speaking and self.loud_s >= self.start_s:
            self.is_speaking = True
            return "started"
        if self.is_speaking and self.quiet_s >= self.end_s:
            self.is_speaking = False
            return "ended"
        return None


# -- the agent


class Agent:
    """Listens, answers, and yields to whoever speaks.

    Args:
        session: Its face.
        synthesize: Gives the speech of a text bit by bit.
        synthesis_rate: Samples a second of that speech.
    """

    CONFIRM_S = 0.3
    """A sound as long as this while the avatar speaks is a barge-in; a shorter one is a cough."""

    def __init__(self, session: AvatarSession, synthesize: Synthesize, synthesis_rate: int) -> None:
        self.session = session
        self.results: list[TurnResult] = []
        self._synthesize = synthesize
        self._rate = synthesis_rate
        self._replies = itertools.cycle(REPLIES)
        self._answer: asyncio.Task[None] | None = None
        self._voice = VoiceActivity()
        self._heard_at: float | None = None  # when a sound began that may be a barge-in

    async def converse(self, microphone: AsyncIterator[Chunk]) -> None:
        """Talk until the microphone ends and the last answer was given."""
        async with asyncio.TaskGroup() as tasks:
            async for chunk in microphone:
                change = self._voice.hear(chunk)
                if self._is_answering:
                    await self._consider_barge_in(change)
                else:
                    self.session.listening(self._voice.is_speaking)
                    if change == "ended":
                        self._answer = tasks.create_task(self._speak(next(self._replies)))

    @property
    def _is_answering(self) -> bool:
        return self._answer is not None and not self._answer.done()

    async def _consider_barge_in(self, change: str | None) -> None:
        now = asyncio.get_running_loop().time()
        if change == "started":
            self._heard_at = now
            await self.session.pause()
        elif self._heard_at is None:
            return
        elif not self._voice.loud_s and now - self._heard_at < self.CONFIRM_S:
            self._heard_at, self._voice.is_speaking = None, False
            await self.session.resume()
        elif now - self._heard_at >= self.CONFIRM_S:
            self._heard_at = None
            position = await self.session.interrupt()
            print(f"  interrupted after {position.seconds:.2f} s ({position.source})")

    async def _speak(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        user_ended = loop.time() - self._voice.end_s
        speech = self._synthesize(text)
        first = await anext(speech)
        turn = self.session.turn(sample_rate=self._rate, voice_agent_s=loop.time() - user_ended)
        async with turn:
            await turn.push(first)
            async for chunk in speech:
                await turn.push(chunk)
        await self._report(turn)

    async def _report(self, turn: Turn) -> None:
        result = await turn.result()
        self.results.append(result)
        if (latency := result.latency) is None:
            return
        print(
            f"  answered after {latency.total_s:.2f} s"
            f" = {latency.voice_agent_s or 0:.2f} voice agent"
            f" + {latency.conditioning_s:.3f} conditioning + {latency.generate_s:.3f} generating"
            f" + {latency.decode_s:.3f} decoding + {latency.hand_out_s:.3f} until due"
            f"; played {result.played_s:.2f} s"
        )


# -- speech synthesis


async def espeak(text: str) -> AsyncIterator[bytes]:
    """Give 22,050 Hz int16 as espeak-ng makes it."""
    process = await asyncio.create_subprocess_exec(
        "espeak-ng", "--stdout", text, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readexactly(44)  # the header of a wav
        while chunk := await process.stdout.read(4_410):
            yield chunk
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def recorded(speech: Chunk) -> Synthesize:
    """Give a recording, whatever the text, twice as fast as it sounds."""

    async def synthesize(text: str) -> AsyncIterator[Chunk]:
        for at in range(0, len(speech), RATE // 10):
            yield speech[at : at + RATE // 10]
            await asyncio.sleep(0.05)

    return synthesize


# -- microphones


async def playing(sound: Chunk) -> AsyncIterator[Chunk]:
    """Play a recording into the agent's ear, in real time."""
    loop, step = asyncio.get_running_loop(), round(CHUNK_S * RATE)
    begin = loop.time()
    for number, at in enumerate(range(0, len(sound) - step + 1, step)):
        await asyncio.sleep(max(0.0, begin + number * CHUNK_S - loop.time()))
        yield sound[at : at + step]


async def microphone() -> AsyncIterator[Chunk]:
    """Give what the default microphone hears, until Ctrl-C; wear headphones."""
    import sounddevice  # type: ignore[import-not-found, unused-ignore]

    loop, step = asyncio.get_running_loop(), round(CHUNK_S * RATE)
    heard: asyncio.Queue[Chunk] = asyncio.Queue(maxsize=50)  # a second; past it we are too slow

    def put(chunk: Chunk) -> None:
        if not heard.full():
            heard.put_nowait(chunk)

    def callback(data: Chunk, frames: int, time: object, status: object) -> None:
        loop.call_soon_threadsafe(put, data[:, 0].copy())

    with sounddevice.InputStream(
        samplerate=RATE, blocksize=step, channels=1, dtype="float32", callback=callback
    ):
        while True:
            yield await heard.get()


def recorded_user(speech: Chunk) -> Chunk:
    """Two questions, and a third that barges into the answer."""
    silence = np.zeros(RATE, np.float32)
    question = speech[: 2 * RATE]
    return np.concatenate(
        [silence, question, *[silence] * 8, question, *[silence] * 3, question, *[silence] * 7]
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description="A voice agent with a face.")
    parser.add_argument("--photo", type=Path, default=portrait_path())
    parser.add_argument("--wav", type=Path, help="a recording of the user")
    parser.add_argument("--microphone", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("conversation.mp4"))
    arguments = parser.parse_args()
    speech = await asyncio.to_thread(decode_file, speech_path())
    if arguments.microphone:
        user = microphone()
    else:
        wav = arguments.wav
        user = playing(await asyncio.to_thread(decode_file, wav) if wav else recorded_user(speech))
    has_espeak = shutil.which("espeak-ng") is not None
    synthesize, rate = (espeak, 22_050) if has_espeak else (recorded(speech), RATE)
    transport = FileTransport(arguments.out)
    async with AvatarSession(arguments.photo, transport=transport, pixel_format="i420") as session:
        print("speak" if arguments.microphone else "the user speaks")
        await Agent(session, synthesize, rate).converse(user)
        stats, usage = session.stats(), session.usage()
    print(
        f"{arguments.out}: {stats.num_frames / 24:.1f} s, {stats.num_stalls} stalls, "
        f"{stats.late_frames.total} frames late, {usage.gpu_hours:.4f} GPU-hours"
    )


if __name__ == "__main__":
    asyncio.run(main())
