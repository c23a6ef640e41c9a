"""The whole program behind ``talking-avatar serve``: page, character, voice, microphone, photos.

Takes a photo. Serves until cancelled. Never opens a port to others unless told to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING

from talking_avatar import AvatarSession, DiffusionConfig, PortraitConfig, open_engine
from talking_avatar_websocket._conversation import Conversation, Scene
from talking_avatar_websocket._limits import Limits
from talking_avatar_websocket._messages import Features
from talking_avatar_websocket._rate import RateRange
from talking_avatar_websocket._server import AvatarServer
from talking_avatar_websocket._transport import WebsocketTransport
from talking_avatar_websocket._viewer import Offering
from talking_avatar_websocket._voices import Voice, default_voice

if TYPE_CHECKING:
    from talking_avatar.cost import RateCard
    from talking_avatar.engine.base import Engine


async def serve(
    photo: str | bytes,
    *,
    engine: str | PortraitConfig | DiffusionConfig = "portrait",
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    viewer_token: str | None = None,
    ssl: SSLContext | None = None,
    allowed_origins: tuple[str, ...] = (),
    voice: Voice | None = None,
    face: int | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    video_rates: RateRange | None = None,
    rates: RateCard | None = None,
    ledger: str | Path | None = None,
    on_ready: Callable[[AvatarServer], None] | None = None,
) -> None:
    """Serve one character to browsers until cancelled.

    Args:
        photo: Path or bytes of an image file.
        engine: See `talking_avatar.open_engine`.
        host: See `AvatarServer`, as for the next five.
        port: TCP port.
        token: What a client must present.
        viewer_token: What lets it watch only.
        ssl: The server's certificate.
        allowed_origins: Of pages elsewhere.
        limits: What clients are held to.
        voice: For texts; None: espeak-ng if it is installed.
        face: Index of the face to take when the photo has several.
        seed: Of the character's own motion.
        video_rates: Bits that a second of video may take.
        rates: What the engine's devices cost, for the price that viewers see.
        ledger: File that keeps what each session used; one photo is one session.
        on_ready: Called when viewers may come.

    Raises:
        PhotoError: The photo cannot become a character.
        OSError: The port cannot be had.
        EngineFailed: The engine failed.
    """
    limits = limits or Limits()
    voice = voice or default_voice()
    features = Features(say_text=voice is not None, photo=True, audio_input=["pcm", "opus"])
    server = AvatarServer(
        host=host,
        port=port,
        token=token,
        viewer_token=viewer_token,
        ssl=ssl,
        allowed_origins=allowed_origins,
        offering=Offering(features=features, rates=video_rates or RateRange()),
        limits=limits,
    )
    opened = await open_engine(engine)
    stage = _Stage(server, opened, seed, rates, ledger)
    try:
        await server.start()
        scene = await stage.begin(photo, face)
        conversation = Conversation(
            server,
            scene,
            voice=voice,
            change_photo=stage.begin,
            max_texts=limits.max_texts,
        )
        if on_ready is not None:
            on_ready(server)
        try:
            await conversation.run()
        except Exception:
            server.fail("the character has failed: the server ends")
            raise
    finally:
        await server.aclose()
        await stage.aclose()
        await opened.aclose()


class _Stage:
    """The session that is shown; another takes its place when it is ready."""

    def __init__(
        self,
        server: AvatarServer,
        engine: Engine,
        seed: int,
        rates: RateCard | None,
        ledger: str | Path | None,
    ) -> None:
        self._server = server
        self._engine = engine
        self._seed = seed
        self._rates = rates
        self._ledger = ledger
        self._session: AvatarSession | None = None

    async def begin(self, photo: str | bytes, face: int | None) -> Scene:
        """Make a session of a photo, show it, and end the one before.

        Raises:
            PhotoError: The photo cannot become a character; the one before goes on.
        """
        before = self._session
        transport = WebsocketTransport(self._server)
        session = AvatarSession(
            photo,
            engine=self._engine,
            transport=transport,
            seed=self._seed,
            pixel_format="i420",
            face=face,
            # For a moment there are two; the one before ends at once.
            checks_capacity=before is None,
            rates=self._rates,
            ledger=self._ledger,
        )
        await session.start()
        self._session = session
        if before is not None:
            await before.aclose()
        return Scene(session, transport)

    async def aclose(self) -> None:
        """End the session. Idempotent."""
        if self._session is not None:
            await self._session.aclose()
