"""The seam that every engine implements, and the only thing a session knows of one.

Takes: a photo, then one `SpeechWindow` and one `Controls` per chunk.
Gives: `FrameBlock`s in the order of submission.
Never: paces, plays sound, or knows what a turn is.

    engine = await open_engine("portrait")
    avatar = await engine.prepare("face.jpg")
    stream = await engine.open_stream(avatar)
    ticket = stream.submit(window, Controls())     # returns at once
    block = await ticket.frames()
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite
from os import PathLike
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 24_000
"""Samples a second of the canonical speech stream; mono."""
FPS = 24
"""Frames a second of every engine."""
SAMPLES_PER_FRAME = SAMPLE_RATE // FPS
"""Exactly 1,000: one frame of picture and 1,000 samples of sound leave together."""

Photo: TypeAlias = "str | PathLike[str] | bytes | npt.NDArray[np.uint8]"
"""A file path, the bytes of an image file, or RGB uint8 of shape (H, W, 3)."""

ControlName: TypeAlias = Literal["listening", "blink", "gaze", "head", "mouth_gain", "emotion"]
Emotion: TypeAlias = Literal["neutral", "happy", "sad", "surprised", "angry"]
DeviceKind: TypeAlias = str
"""``"cpu"`` or a GPU's kind, as a rate card names it: ``"H200"``, ``"H100"``, ``"L40S"``..."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that an engine holds while it is open.

    Attributes:
        name: ``"cpu"`` or ``"cuda:0"``...
        kind: Key of the rate card.
        role: What it does.
    """

    name: str
    kind: DeviceKind
    role: Literal["render", "denoise", "decode"]

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a session must know of an engine.

    Attributes:
        name: ``"portrait"``, ``"diffusion"``, ``"fake"``.
        width, height: Size of a frame in pixels; both even.
        frames_per_chunk: Frames made by one submission.
        lookahead_samples: Speech beyond the chunk's own end that a window should hold, at 24 kHz.
        pipeline_depth: Tickets that may be outstanding.
        step_s: Expected seconds to generate one chunk.
        decode_s: Expected seconds to decode it, where that is apart; else 0.
        controls: What it obeys of `Controls`; the rest it ignores.
        devices: What it holds.
    """

    name: str
    width: int
    height: int
    frames_per_chunk: int
    lookahead_samples: int
    pipeline_depth: int
    step_s: float
    decode_s: float = 0.0
    controls: frozenset[ControlName] = frozenset()
    devices: tuple[Device, ...] = (Device("cpu", "cpu", "render"),)

    @property
    def chunk_samples(self) -> int:
        """Samples of speech that one chunk covers."""
        return self.frames_per_chunk * SAMPLES_PER_FRAME

    @property
    def chunk_s(self) -> float:
        """Seconds of picture in one chunk."""
        return self.frames_per_chunk / FPS

    @property
    def barge_in_frames(self) -> int:
        """Frames of a cut turn whose picture may still be shown, silent, after an interruption.

        The rest of the chunk on the screen, then as many chunks as the engine needs to make the
        first silent one.
        """
        chunks = max(1, ceil((self.step_s + self.decode_s) / self.chunk_s))
        return self.frames_per_chunk - 1 + chunks * self.frames_per_chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What the character does beside speaking, for one chunk. An engine ignores what it can't.

    Attributes:
        listening: Attentive idle: nods, steady gaze.
        blink: 0 open, 1 closed; None leaves blinking to the engine.
        gaze: (x, y), each -1 to 1: right and down as seen in the picture; None: the engine's own.
        head: (yaw, pitch, roll) in degrees added to the engine's own motion.
        mouth_gain: Multiplies how far the mouth opens; 1 as spoken.
        emotion: Expression.
        emotion_strength: 0 to 1.
    """

    listening: bool = False
    blink: float | None = None
    gaze: tuple[float, float] | None = None
    head: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mouth_gain: float = 1.0
    emotion: Emotion = "neutral"
    emotion_strength: float = 1.0

    def __post_init__(self) -> None:
        if self.emotion not in get_args(Emotion):
            raise ValueError(
                f"emotion {self.emotion!r} must be one of {', '.join(get_args(Emotion))}"
            )
        if len(self.head) != 3 or (self.gaze is not None and len(self.gaze) != 2):
            raise ValueError(f"head {self.head} must be 3 angles, gaze {self.gaze} (x, y) or None")
        numbers = (self.blink or 0.0, *(self.gaze or ()), *self.head, self.emotion_strength)
        if not all(map(isfinite, (*numbers, self.mouth_gain))) or self.mouth_gain < 0:
            raise ValueError(f"{self} must hold finite numbers, and no negative mouth_gain")


@dataclass(frozen=True, slots=True, eq=False)
class SpeechWindow:
    """The speech that one chunk shows, and what is known of the speech after it.

    Chunks are consecutive: an engine keeps its own history from the windows before, and
    forgets it on `AvatarStream.rewind`.

    Attributes:
        chunk_index: 0, 1, 2...; after ``rewind(to_chunk=k)`` the next one is ``k + 1``.
        samples: float32 in [-1, 1], 24 kHz mono, shape (chunk_samples + lookahead_samples,).
            The first chunk_samples sound while this chunk is shown.
        num_known: How many of ``samples`` are final. The rest are zeros because that speech has
            not arrived; it may differ when it does. Never less than chunk_samples.
        speaking: Whether a turn sounds in the chunk's own samples. False in idle, and in the
            picture that runs on after a barge-in.
    """

    chunk_index: int
    samples: npt.NDArray[np.float32]
    num_known: int
    speaking: bool


@dataclass(frozen=True, slots=True, eq=False)
class FrameBlock:
    """The frames of one chunk, in host memory.

    Attributes:
        chunk_index: Of the window that it answers.
        images: uint8 RGB, shape (frames_per_chunk, H, W, 3). The receiver owns them.
        generate_s: Seconds of work to generate.
        decode_s: Seconds of work to decode, where that is apart; else 0.
        cpu_s: CPU seconds of the engine's own thread, where it works on a CPU and can tell.
    """

    chunk_index: int
    images: npt.NDArray[np.uint8]
    generate_s: float
    decode_s: float = 0.0
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class PhotoWarning:
    """Something about the photo that the caller should know but that does not prevent a character.

    Attributes:
        code: Stable name, such as ``"sunglasses"`` or ``"turned"``.
        message: What was found, with numbers, and what follows.
    """

    code: str
    message: str


@runtime_checkable
class Avatar(Protocol):
    """A prepared photo. Belongs to the engine that made it; may feed any number of streams."""

    @property
    def warnings(self) -> tuple[PhotoWarning, ...]: ...


class ChunkTicket(Protocol):
    """The promise of one chunk."""

    @property
    def chunk_index(self) -> int: ...

    async def frames(self) -> FrameBlock:
        """Wait for the chunk.

        Cancelling this wait does not cancel the work; `AvatarStream.rewind` does.

        Raises:
            EngineFailed: The engine raised while making it.
            ChunkDropped: A rewind dropped this ticket.
        """
        ...


class AvatarStream(Protocol):
    """One character in motion. Not shared between sessions."""

    def submit(self, window: SpeechWindow, controls: Controls) -> ChunkTicket:
        """Queue one chunk; returns at once, does no work on the caller's thread.

        Raises:
            EngineBusy: ``info.pipeline_depth`` tickets are outstanding.
            ValueError: ``window`` is out of order or has the wrong number of samples.
        """
        ...

    async def rewind(self, to_chunk: int) -> None:
        """Forget every chunk after ``to_chunk``: cancel their tickets, continue from its state.

        The next window has ``chunk_index == to_chunk + 1``. ``to_chunk=-1`` is the start. A stream
        can go back at least ``2 * pipeline_depth + 2`` chunks.

        Raises:
            ValueError: ``to_chunk`` is too old or was never submitted.
        """
        ...

    async def aclose(self) -> None:
        """Release what the stream holds. Idempotent."""
        ...


class Engine(Protocol):
    """Makes characters. Open one, share it between sessions, close it."""

    @property
    def info(self) -> EngineInfo: ...

    async def prepare(self, photo: Photo, *, face: int | None = None) -> Avatar:
        """Make a character of a photo, off the event loop.

        Args:
            photo: See `Photo`.
            face: Index of the face to take when the photo has several.

        Raises:
            PhotoError: One of its kinds, with what to do.
        """
        ...

    async def open_stream(self, avatar: Any, *, seed: int = 0) -> AvatarStream:
        """Begin one character's motion. Same seed and same windows: same frames."""
        ...

    async def aclose(self) -> None:
        """Release the engine. Idempotent."""
        ...
