"""Whether PCM can be the sound that its caller stated.

Takes a stream's raw samples and what they decode to; gives a suspicion with its reason. Never
guesses another format, never changes or refuses a sample: `talking_avatar.audio` logs the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

_Samples: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a stream is hardly the sound that was stated.

    Attributes:
        reason: Stable name: ``"container"``, ``"text"``, ``"scale"``, ``"noise"`` or
            ``"partial_frame"``.
        hint: What was seen, with numbers, and what to look into.
    """

    reason: str
    hint: str


_CONTAINERS: Final[tuple[tuple[bytes, int, str], ...]] = (
    (b"RIFF", 0, "WAV"),
    (b"OggS", 0, "Ogg"),
    (b"fLaC", 0, "FLAC"),
    (b"ID3", 0, "MP3"),
    (b"\x1aE\xdf\xa3", 0, "WebM"),
    (b"ftyp", 4, "MP4"),
)
"""What files of sound begin with: mark, its offset, name."""


class Plausibility:
    """Looks at the first five seconds of a stream for what speech in that format never is.

    Works on windows of 50 ms.
    """

    _WINDOW_S = 0.05
    _NUM_WINDOWS = 100
    _MIN_TEXT_BYTES = 32

    def __init__(self, sample_rate: int) -> None:
        self._window_frames = int(sample_rate * self._WINDOW_S)
        self._num_windows = 0
        self._pcm: list[npt.NDArray[Any]] = []
        self._mono: list[_Samples] = []
        self._num_frames = 0

    def look_at(self, pcm: npt.NDArray[Any], mono: _Samples) -> Suspicion | None:
        """Take a chunk; judge every window that it fills."""
        suspicion = None
        while len(mono) and suspicion is None and self._num_windows < self._NUM_WINDOWS:
            part = slice(self._window_frames - self._num_frames)
            rest = slice(self._window_frames - self._num_frames, None)
            self._pcm.append(pcm[part])
            self._mono.append(mono[part])
            self._num_frames += len(mono[part])
            pcm, mono = pcm[rest], mono[rest]
            if self._num_frames == self._window_frames:
                suspicion = self._judge()
        return suspicion

    def at_end(self, num_frames_in: int, num_partial_bytes: int) -> Suspicion | None:
        """Judge what filled no window, such as an error body of 90 bytes."""
        suspicion = self._judge() if self._num_frames else None
        if suspicion or not num_partial_bytes:
            return suspicion
        return Suspicion(
            "partial_frame",
            f"the turn ended {num_partial_bytes} bytes into frame {num_frames_in}: "
            "is the stated format right?",
        )

    def _judge(self) -> Suspicion | None:
        raw = b"".join(chunk.tobytes() for chunk in self._pcm)
        suspicion = (
            (_container(raw) if self._num_windows == 0 else None)
            or (_text(raw) if len(raw) >= self._MIN_TEXT_BYTES else None)
            or _scale(self._pcm)
            or _noise(np.concatenate(self._mono))
        )
        self._num_windows += 1
        self._pcm, self._mono, self._num_frames = [], [], 0
        return suspicion


def _container(raw: bytes) -> Suspicion | None:
    for mark, offset, name in _CONTAINERS:
        if raw[offset : offset + len(mark)] == mark:
            return Suspicion(
                "container",
                f"the bytes begin like a {name} file, not like PCM: pass the path of the file, "
                "or only the samples in it",
            )
    return None


def _scale(chunks: list[npt.NDArray[Any]]) -> Suspicion | None:
    if chunks[0].dtype.kind != "f":
        return None
    peak = max(float(np.abs(chunk).max()) for chunk in chunks)
    if peak <= 4:  # +12 dB: what a hot mixer may give
        return None
    return Suspicion(
        "scale", f"float samples reach {peak:.4g} and are clipped to 1: divide by full scale"
    )


def _text(raw: bytes) -> Suspicion | None:
    codes = np.frombuffer(raw, np.uint8)
    share = float(np.mean(((codes >= 0x20) & (codes < 0x7F)) | ((codes >= 9) & (codes <= 13))))
    if share < 0.95:
        return None
    return Suspicion("text", f"{share:.0%} of the bytes are printable ASCII: an error message?")


def _noise(mono: _Samples) -> Suspicion | None:
    """Near-white at full scale: compressed or misaligned bytes, or another encoding.

    For white noise the differences have sqrt(2) times the RMS of the samples, for voiced speech
    0.05 to 0.6; fricatives come near 1.4 but never near full scale.
    """
    rms = float(np.sqrt(np.mean(mono**2)))
    whiteness = float(np.sqrt(np.mean(np.diff(mono) ** 2))) / rms if len(mono) > 32 and rms else 0
    if rms < 0.3 or whiteness < 0.9:
        return None
    return Suspicion(
        "noise",
        f"white noise at full scale (RMS {rms:.2f}): are the bytes compressed, in another "
        "encoding, big-endian, off by one, or clipped throughout?",
    )
