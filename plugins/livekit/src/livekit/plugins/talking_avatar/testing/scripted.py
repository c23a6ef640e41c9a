"""A listener, a mind and a voice without any account: for tests and for a first look.

    session = AgentSession(stt=ScriptedSTT(), llm=ScriptedLLM(["Hello."]), tts=ToneTTS())

They implement LiveKit's own interfaces and do nothing clever: the mind says what it was told,
the voice hums, the listener hears what `ScriptedSTT.hear` is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from livekit.agents import llm, stt, tts
from livekit.agents.language import LanguageCode
from livekit.agents.types import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectOptions,
    NotGivenOr,
)
from livekit.agents.utils import AudioBuffer, shortuuid

SECONDS_PER_WORD = 0.35


class ScriptedLLM(llm.LLM[Any]):
    """Says the given replies in turn, word by word, and from the first again."""

    def __init__(self, replies: Iterable[str]) -> None:
        super().__init__()
        self._replies: Iterator[str] = cycle(replies)

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        **ignored: Any,
    ) -> llm.LLMStream:
        reply = next(self._replies)
        return _ScriptedStream(
            self, reply, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options
        )


class _ScriptedStream(llm.LLMStream):
    def __init__(self, model: llm.LLM[Any], reply: str, **context: Any) -> None:
        super().__init__(model, **context)
        self._reply = reply

    async def _run(self) -> None:
        request_id = shortuuid("reply_")
        for word in self._reply.split():
            delta = llm.ChoiceDelta(role="assistant", content=f"{word} ")
            self._event_ch.send_nowait(llm.ChatChunk(id=request_id, delta=delta))
            await asyncio.sleep(0)


class ToneTTS(tts.TTS[Any]):
    """Hums a syllable a word, `SECONDS_PER_WORD` each, as fast as it is asked to.

    Args:
        sample_rate: Of its sound.
        pace: Seconds of waiting for each second of sound; 0: none.
    """

    def __init__(self, *, sample_rate: int = 24_000, pace: float = 0.0) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=False),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self.pace = pace

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return _ToneStream(tts=self, input_text=text, conn_options=conn_options)


class _ToneStream(tts.ChunkedStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        assert isinstance(self._tts, ToneTTS)
        rate = self._tts.sample_rate
        output_emitter.initialize(
            request_id=shortuuid("tone_"),
            sample_rate=rate,
            num_channels=1,
            mime_type="audio/pcm",
            frame_size_ms=50,
        )
        for number, _ in enumerate(self._input_text.split()):
            output_emitter.push(syllable(number, rate).tobytes())
            if self._tts.pace:
                await asyncio.sleep(self._tts.pace * SECONDS_PER_WORD)
        output_emitter.flush()


def syllable(number: int, rate: int) -> npt.NDArray[np.int16]:
    """Give int16 (n,): a hum of `SECONDS_PER_WORD` that swells and fades."""
    time_s = np.arange(round(SECONDS_PER_WORD * rate)) / rate
    pitch_hz = 110 * 2 ** ((number * 5 % 7) / 12)
    hum = sum(np.sin(2 * np.pi * pitch_hz * n * time_s) / n for n in range(1, 7))
    swell = np.sin(np.pi * time_s / SECONDS_PER_WORD) ** 2
    sound: npt.NDArray[np.int16] = (hum * swell * 8_000).astype(np.int16)
    return sound


class ScriptedSTT(stt.STT[Any]):
    """Hears what it is told to have heard, whatever the microphone says."""

    def __init__(self) -> None:
        super().__init__(
            capabilities=stt.STTCapabilities(
                streaming=True, interim_results=True, offline_recognize=False
            )
        )
        self._streams: list[_ScriptedHearing] = []

    def hear(self, text: str, *, is_final: bool = True) -> None:
        """The user says this now; not final: has begun to, and goes on."""
        for stream in self._streams:
            stream.hear(text, is_final=is_final)

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> stt.RecognizeStream:
        stream = _ScriptedHearing(stt=self, conn_options=conn_options)
        self._streams.append(stream)
        return stream

    async def _recognize_impl(
        self,
        buffer: AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        raise NotImplementedError("stream() is all there is")


class _ScriptedHearing(stt.RecognizeStream):
    def hear(self, text: str, *, is_final: bool) -> None:
        said = stt.SpeechData(language=LanguageCode("en"), text=text, confidence=1.0)
        kinds = [stt.SpeechEventType.START_OF_SPEECH, stt.SpeechEventType.INTERIM_TRANSCRIPT]
        if is_final:
            kinds += [stt.SpeechEventType.FINAL_TRANSCRIPT, stt.SpeechEventType.END_OF_SPEECH]
        if not self._event_ch.closed:
            for kind in kinds:
                self._event_ch.send_nowait(stt.SpeechEvent(type=kind, alternatives=[said]))

    async def _run(self) -> None:
        async for _ in self._input_ch:
            pass
