"""Every error this package raises on purpose.

    TalkingAvatarError
    ├── PhotoError                  the photo cannot become a character
    │   ├── UnreadableImage         not an image, broken, or too large to open safely
    │   ├── NoFace                  no human face was found
    │   ├── SeveralFaces            more than one; choose one by its index
    │   ├── FaceTooSmall            fewer pixels than a character needs
    │   └── FaceTurned              the head looks too far away from the camera
    ├── AudioFormatError            speech that is not what the caller stated
    ├── EngineError                 the engine cannot do what was asked
    │   ├── EngineBusy              more chunks outstanding than its pipeline holds
    │   ├── EngineFailed            it raised while working; carries the cause
    │   ├── ChunkDropped            a rewind dropped the chunk that was waited for
    │   ├── OutOfMemory             predicted or real, with the numbers
    │   └── CheckpointError         a weight is missing, or of the wrong shape
    ├── SessionError                the session cannot do that now
    │   ├── SessionClosed           it has ended
    │   ├── SessionNotStarted       it has not begun
    │   ├── TurnClosed              that turn takes no more speech
    │   └── AtCapacity              the cores do not hold one more live session
    ├── LedgerError                 what sessions cost could not be written or read
    ├── TransportClosed             the other side of a transport has gone
    └── MissingDependency           an optional extra is not installed

An error carries its numbers as attributes; its text says what happened and what to do.
`ValueError` and `TypeError` stay for arguments that no program should pass.
"""

from __future__ import annotations

from dataclasses import dataclass


class TalkingAvatarError(Exception):
    """Base of every error of this package."""


@dataclass(frozen=True, slots=True)
class FaceBox:
    """One face found in a photo, in pixels of the upright photo.

    Attributes:
        index: Pass it as ``face=`` to choose this face; 0 is the largest.
        left, top, width, height: The box, in pixels.
        score: Detector's confidence, 0 to 1.
    """

    index: int
    left: int
    top: int
    width: int
    height: int
    score: float


class PhotoError(TalkingAvatarError):
    """The photo cannot become a character."""


class UnreadableImage(PhotoError):  # noqa: N818
    """The bytes are not an image that can be opened safely."""


class NoFace(PhotoError):  # noqa: N818
    """No human face was found."""


class SeveralFaces(PhotoError):  # noqa: N818
    """More than one face was found and none was chosen."""

    def __init__(self, message: str, boxes: tuple[FaceBox, ...]) -> None:
        super().__init__(message)
        self.boxes = boxes


class FaceTooSmall(PhotoError):  # noqa: N818
    """The face has too few pixels."""

    def __init__(self, message: str, *, face_px: int, minimum_px: int) -> None:
        super().__init__(message)
        self.face_px = face_px
        self.minimum_px = minimum_px


class FaceTurned(PhotoError):  # noqa: N818
    """The head is turned too far from the camera."""

    def __init__(self, message: str, *, yaw_deg: float, limit_deg: float) -> None:
        super().__init__(message)
        self.yaw_deg = yaw_deg
        self.limit_deg = limit_deg


class AudioFormatError(TalkingAvatarError):
    """Speech is not what the caller stated, or holds values that cannot be sound."""


class EngineError(TalkingAvatarError):
    """The engine cannot do what was asked."""


class EngineBusy(EngineError):  # noqa: N818
    """More chunks are outstanding than the engine's pipeline holds."""


class EngineFailed(EngineError):  # noqa: N818
    """The engine raised while working; ``__cause__`` has the original error."""


class ChunkDropped(EngineError):  # noqa: N818
    """A rewind dropped the chunk that was waited for; not a failure."""


class OutOfMemory(EngineError):  # noqa: N818
    """Memory is short, by prediction or in fact.

    Attributes:
        needed_bytes: What the work needs; None if unknown.
        free_bytes: What was free; None if unknown.
    """

    def __init__(
        self, message: str, *, needed_bytes: int | None = None, free_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class CheckpointError(EngineError):
    """A checkpoint does not fit the configuration; the text names tensor, shapes and file."""


class SessionError(TalkingAvatarError):
    """The session cannot do that now."""


class SessionClosed(SessionError):  # noqa: N818
    """The session has ended."""


class SessionNotStarted(SessionError):  # noqa: N818
    """The session has not been started."""


class TurnClosed(SessionError):  # noqa: N818
    """The turn takes no more speech: it was ended or interrupted."""


class AtCapacity(SessionError):  # noqa: N818
    """The cores do not hold one more live session.

    Attributes:
        needed_cores: What all of them together would need.
        num_cores: What this process may use.
    """

    def __init__(self, message: str, *, needed_cores: float, num_cores: float) -> None:
        super().__init__(message)
        self.needed_cores = needed_cores
        self.num_cores = num_cores


class LedgerError(TalkingAvatarError):
    """The ledger could not be written or read; ``__cause__`` has the database's own error."""


class TransportClosed(TalkingAvatarError):  # noqa: N818
    """The other side of a transport has gone."""


class MissingDependency(TalkingAvatarError, ImportError):  # noqa: N818
    """An optional extra is not installed; the text names the command that installs it."""
