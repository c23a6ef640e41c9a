"""What viewers ask for, done: the glue between a server's events and a session.

Takes a server's events. Gives them to a session: interruptions, pauses, texts, a microphone to hear
oneself through the character, a new photo. Gives viewers the results and once a second the figures.
An application with an agent of its own writes its own loop over `AvatarServer.events` instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import anyio
import structlog
from anyio.abc import TaskGroup

from talking_avatar import (
    AudioFormatError,
    AvatarSession,
    PhotoError,
    SessionClosed,
    SeveralFaces,
    TalkingAvatarError,
    Turn,
    TurnResult,
)
from talking_avatar_websocket._events import (
    InterruptAsked,
    PauseAsked,
    PhotoCame,
    ResumeAsked,
    SpeechBegan,
    SpeechCame,
    SpeechEnded,
    TextCame,
    ViewerEvent,
)
from talking_avatar_websocket._messages import (
    ErrorMessage,
    FaceFound,
    Interrupted,
    Paused,
    PhotoAccepted,
    PhotoProblem,
    PhotoRejected,
    Said,
)
from talking_avatar_websocket._server import AvatarServer
from talking_avatar_websocket._transport import WebsocketTransport
from talking_avatar_websocket._voices import Voice, VoiceFailed

_log = structlog.stdlib.get_logger("talking_avatar.websocket")

ChangePhoto = Callable[[bytes, int | None], Awaitable["Scene"]]
"""Makes the next scene of an image file, and ends the one before when it is there."""

_PHOTO_CODES = {
    "NoFace": "no_face",
    "SeveralFaces": "several_faces",
    "FaceTooSmall": "face_too_small",
    "FaceTurned": "face_turned",
    "UnreadableImage": "unreadable_image",
}


class Scene:
    """One session and the transport that it was given."""

    def __init__(self, session: AvatarSession, transport: WebsocketTransport) -> None:
        self.session = session
        self.transport = transport


class Conversation:
    """Runs until cancelled, or the session fails.

    Args:
        server: Whose events are done.
        scene: Of the beginning.
        voice: For texts; None: the server should not offer them.
        change_photo: For photos; None likewise.
        max_texts: Texts that may wait.
    """

    def __init__(
        self,
        server: AvatarServer,
        scene: Scene,
        *,
        voice: Voice | None = None,
        change_photo: ChangePhoto | None = None,
        max_texts: int = 4,
    ) -> None:
        self._server = server
        self._scene = scene
        self._voice = voice
        self._change_photo = change_photo
        self._max_texts = max_texts
        self._texts: deque[TextCame] = deque()
        self._text_came = asyncio.Event()
        self._turn: Turn | None = None
        self._sample_rate = 0
        self._is_changing = False
        self._is_paused = False
        self._last: TurnResult | None = None

    @property
    def scene(self) -> Scene:
        """The session of now and its transport."""
        return self._scene

    async def run(self) -> None:
        """Do what viewers ask for.

        Raises:
            EngineFailed: The session failed, and with it the conversation.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._speak_texts, tasks)
                tasks.start_soon(self._report)
                async for event in self._server.events():
                    with self._while_changing():
                        await self._do(event, tasks)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            first = _first_of(group)
            raise first from first.__cause__

    @contextmanager
    def _while_changing(self) -> Iterator[None]:
        """Let go what was asked of a session that is just being replaced."""
        try:
            yield
        except SessionClosed:
            if not self._is_changing:
                raise

    async def _do(self, event: ViewerEvent, tasks: TaskGroup) -> None:
        session = self._scene.session
        match event:
            case InterruptAsked():
                tasks.start_soon(self._interrupt, event)
            case PauseAsked():
                await session.pause()
                self._tell_paused(True)
            case ResumeAsked():
                await session.resume()
                self._tell_paused(False)
            case TextCame():
                self._queue_text(event)
            case SpeechBegan():
                self._sample_rate = event.sample_rate
                self._begin_turn(tasks)
            case SpeechCame():
                await self._push(event, tasks)
            case SpeechEnded():
                await self._end_turn()
            case PhotoCame():
                self._begin_photo(event, tasks)

    # -- interruptions

    async def _interrupt(self, event: InterruptAsked) -> None:
        self._texts.clear()
        self._turn = None
        with self._while_changing():
            position = await self._scene.session.interrupt()
            self._server.send(
                Interrupted(played_s=position.seconds, source=position.source), to=event.viewer
            )
        self._tell_paused(False)

    def _tell_paused(self, is_paused: bool) -> None:
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self._server.send(Paused(is_paused=is_paused))

    async def _announce(self, turn: Turn, scene: Scene) -> None:
        try:
            self._last = await turn.result()
        except TalkingAvatarError:
            return  # the session has ended; whoever runs it is told
        scene.transport.announce(self._last)

    # -- the microphone

    def _begin_turn(self, tasks: TaskGroup) -> None:
        self._turn = self._scene.session.turn(sample_rate=self._sample_rate)
        tasks.start_soon(self._announce, self._turn, self._scene)

    async def _push(self, event: SpeechCame, tasks: TaskGroup) -> None:
        """Let the character speak what the microphone hears; anew after an interruption."""
        if not self._sample_rate:
            return
        if self._turn is None or self._turn.is_done:
            self._begin_turn(tasks)
        turn = self._turn
        assert turn is not None
        try:
            await turn.push(event.samples)
        except AudioFormatError as error:
            turn.cut()
            self._turn = None
            self._refuse(event.viewer, "audio_format", str(error))
        except TalkingAvatarError:
            if not turn.is_done:
                raise
            self._turn = None  # interrupted

    async def _end_turn(self) -> None:
        turn, self._turn, self._sample_rate = self._turn, None, 0
        if turn is not None:
            await turn.end()

    # -- texts

    def _queue_text(self, event: TextCame) -> None:
        if len(self._texts) >= self._max_texts:
            message = f"{self._max_texts} texts wait to be spoken already"
            self._refuse(event.viewer, "too_many_texts", message)
            return
        self._texts.append(event)
        self._text_came.set()

    async def _speak_texts(self, tasks: TaskGroup) -> None:
        while True:
            while not self._texts:
                self._text_came.clear()
                await self._text_came.wait()
            event = self._texts.popleft()
            with self._while_changing():
                await self._speak(event, tasks)

    async def _speak(self, event: TextCame, tasks: TaskGroup) -> None:
        voice, scene = self._voice, self._scene
        if voice is None:
            self._refuse(event.viewer, "voice_failed", "this server has no voice")
            return
        async with scene.session.turn(sample_rate=voice.sample_rate) as turn:
            tasks.start_soon(self._announce, turn, scene)
            said = Said(request_id=event.request_id, turn_id=turn.turn_id)
            self._server.send(said, to=event.viewer)
            try:
                await _speak_into(turn, voice, event)
            except VoiceFailed as error:
                turn.cut()
                self._refuse(event.viewer, "voice_failed", str(error))

    def _refuse(self, viewer: int, code: str, message: str) -> None:
        self._server.send(
            ErrorMessage.model_validate({"code": code, "message": message}), to=viewer
        )

    # -- photos

    def _begin_photo(self, event: PhotoCame, tasks: TaskGroup) -> None:
        if self._change_photo is None or self._is_changing:
            code = "not_accepted" if self._change_photo is None else "busy"
            self._server.send(
                PhotoRejected(code=code, message="no photo is taken now"), to=event.viewer
            )
            return
        self._is_changing = True
        tasks.start_soon(self._replace_photo, event, self._change_photo)

    async def _replace_photo(self, event: PhotoCame, change_photo: ChangePhoto) -> None:
        try:
            self._scene = await change_photo(event.data, event.face)
            self._turn = None
            self._tell_paused(False)
            warnings = [
                PhotoProblem(code=warning.code, message=warning.message)
                for warning in self._scene.session.avatar.warnings
            ]
            self._server.send(PhotoAccepted(warnings=warnings))
        except TalkingAvatarError as error:
            self._server.send(rejection_of(error), to=event.viewer)
        finally:
            self._is_changing = False

    # -- figures

    async def _report(self) -> None:
        """Send the figures once a second; raise what the session died of."""
        while True:
            await asyncio.sleep(1.0)
            scene = self._scene
            if not self._is_changing:
                scene.session.set_controls()  # raises if the session has failed
            scene.transport.report(scene.session, self._last)


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """Give what failed first: where one task fails, the others are cancelled."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


async def _speak_into(turn: Turn, voice: Voice, event: TextCame) -> None:
    """Push a text's speech.

    Raises:
        VoiceFailed: The voice failed, in whatever way; its own words are kept from viewers.
    """
    speech = voice.speak(event.text, event.language)
    try:
        async with aclosing(speech) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await turn.push(piece)
    except VoiceFailed:
        raise
    except Exception as error:
        if turn.is_done or isinstance(error, SessionClosed):
            raise  # interrupted, or over
        _log.warning("websocket_voice_failed", error=type(error).__name__)
        raise VoiceFailed("the voice has failed: try again") from error


def rejection_of(error: TalkingAvatarError) -> PhotoRejected:
    """Give what viewers are told of a photo that cannot become a character."""
    boxes = error.boxes if isinstance(error, SeveralFaces) else ()
    unknown = "unreadable_image" if isinstance(error, PhotoError) else "not_accepted"
    return PhotoRejected(
        code=_PHOTO_CODES.get(type(error).__name__, unknown),
        message=str(error),
        faces=[
            FaceFound(
                index=box.index, left=box.left, top=box.top, width=box.width, height=box.height
            )
            for box in boxes
        ],
    )
