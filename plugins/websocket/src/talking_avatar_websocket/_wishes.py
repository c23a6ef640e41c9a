"""What a speaker's messages mean to an application.

Takes messages and packets of those who have the floor. Gives `ViewerEvent`s, microphone sound
decoded; answers by itself what this server does not do. Never awaits.
"""

from __future__ import annotations

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
    AudioStart,
    AudioStop,
    ErrorMessage,
    Features,
    Interrupt,
    Pause,
    PhotoRejected,
    Resume,
    SayText,
)
from talking_avatar_websocket._protocol import ClientEvent, MicrophoneSound, UploadedPhoto
from talking_avatar_websocket._sound import BadSound, MicrophoneDecoder
from talking_avatar_websocket._viewer import Viewer


class Wishes:
    """Of all viewers of one server.

    Args:
        features: What the server does; the rest is refused.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._decoders: dict[int, MicrophoneDecoder] = {}

    def forget(self, viewer: Viewer) -> None:
        """A viewer has gone."""
        self._decoders.pop(viewer.number, None)

    def of(self, viewer: Viewer, event: ClientEvent) -> ViewerEvent | None:
        """Give what it asks for; None if that is nothing, or was refused."""
        number = viewer.number
        match event:
            case Interrupt():
                return InterruptAsked(number)
            case Pause():
                return PauseAsked(number)
            case Resume():
                return ResumeAsked(number)
            case SayText() if self._features.say_text:
                return TextCame(number, event.text, event.language, event.request_id)
            case AudioStart() if event.codec in self._features.audio_input:
                decoder = MicrophoneDecoder(event.codec, event.sample_rate)
                self._decoders[number] = decoder
                return SpeechBegan(number, decoder.sample_rate)
            case MicrophoneSound() if number in self._decoders:
                return self._heard(viewer, event)
            case AudioStop() if self._decoders.pop(number, None) is not None:
                return SpeechEnded(number)
            case UploadedPhoto() if self._features.photo:
                return PhotoCame(number, event.data, event.face)
            case UploadedPhoto() | SayText() | AudioStart():
                self._refuse(viewer, event)
        return None

    def _heard(self, viewer: Viewer, event: MicrophoneSound) -> SpeechCame | None:
        try:
            samples = self._decoders[viewer.number].decode(event.payload)
        except BadSound as error:
            viewer.send(ErrorMessage(code="audio_format", message=str(error)))
            return None
        return SpeechCame(viewer.number, samples) if len(samples) else None

    @staticmethod
    def _refuse(viewer: Viewer, event: ClientEvent) -> None:
        if isinstance(event, UploadedPhoto):
            refusal = "this server takes no photos"
            viewer.send(PhotoRejected(code="not_accepted", message=refusal))
        else:
            refusal = "this server does not do that"
            viewer.send(ErrorMessage(code="not_supported", message=refusal))
