"""Gives agents their avatars over HTTP, as many at a time as there is room for.

    GET    /health           200 and how many sessions there are, of how many
    POST   /sessions         `Launch` -> 201 `Launched`, or a `Refusal`: 422 photo, 503 no capacity
    DELETE /sessions/{id}    200 `Ended`; also of one that has ended by itself

Never starts processes: all sessions share one engine. Never logs tokens.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from uuid import uuid4

from aiohttp import web
from pydantic import ValidationError

from talking_avatar import EngineConfig, PhotoError, TalkingAvatarError, open_engine
from talking_avatar.engine.base import Engine, Photo
from talking_avatar.errors import AtCapacity

from .._character import Looks
from .._messages import MOST_PHOTO_BYTES, Launch, Launched, Refusal
from ..log import logger
from .session import RoomSession

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_REMEMBERED = 256
"""Sessions that have ended and whose cost can still be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker serves.

    Attributes:
        engine: Name or configuration; opened once.
        photo: For agents that send none.
        host, port: Where it listens; port 0: any free one.
        token: Agents must know it; needed on any address but the machine's own.
        max_sessions: At a time. On the CPU each is also checked against the cores.
        max_session_s: How long one lasts at most; None: as long as its agent.
    """

    engine: str | EngineConfig = "portrait"
    photo: Photo | None = None
    host: str = "127.0.0.1"
    port: int = 8089
    token: str | None = None
    max_sessions: int = 4
    max_session_s: float | None = 3600.0

    def __post_init__(self) -> None:
        if self.token is None and self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                f"on {self.host} anybody could have avatars made: state a token, or listen on "
                "127.0.0.1"
            )
        if self.max_sessions < 1:
            raise ValueError(f"max_sessions is {self.max_sessions}: there would be none")


class Dispatcher:
    """A worker that runs while its block does.

    async with Dispatcher(WorkerOptions(photo="face.jpg")) as worker:
        print(worker.url)
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._engine: Engine | None = None
        self._running: dict[str, RoomSession] = {}
        self._over: OrderedDict[str, RoomSession] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self.url = ""

    @property
    def num_sessions(self) -> int:
        """Sessions that run or start now."""
        return len(self._running)

    async def __aenter__(self) -> Dispatcher:
        self._engine = await open_engine(self._options.engine)
        app = web.Application(
            client_max_size=MOST_PHOTO_BYTES * 4 // 3 + 100_000, middlewares=[self._guard]
        )
        app.router.add_get("/health", self._health)
        app.router.add_post("/sessions", self._launch)
        app.router.add_delete("/sessions/{id}", self._end)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self._options.host, self._options.port).start()
        except BaseException:
            await self._close()
            raise
        self.url = f"http://{self._options.host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        for session in list(self._running.values()):
            await session.stop()
        if self._engine is not None:
            await self._engine.aclose()

    # -- requests

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Ask for the token, for everything but health."""
        token = self._options.token
        given = request.headers.get("Authorization", "")
        is_free = token is None or request.path == "/health"
        if not is_free and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return _refused(401, "Unauthorized", "the worker's token is missing or wrong")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"num_sessions": self.num_sessions, "max_sessions": self._options.max_sessions}
        )

    async def _launch(self, request: web.Request) -> web.Response:
        try:
            launch = Launch.model_validate_json(await request.read())
            photo = self._photo_of(launch)
        except (ValidationError, binascii.Error, ValueError):
            return _refused(400, "BadRequest", "url, token and a photo in base64 are needed")
        if self.num_sessions >= self._options.max_sessions:
            return _refused(
                503,
                "AtCapacity",
                f"all {self._options.max_sessions} sessions are taken: ask another worker, or "
                "start this one with more",
            )
        return await self._start(launch, photo)

    def _photo_of(self, launch: Launch) -> Photo:
        if launch.photo is not None:
            return base64.b64decode(launch.photo, validate=True)
        if self._options.photo is None:
            raise ValueError("no photo")
        return self._options.photo

    async def _start(self, launch: Launch, photo: Photo) -> web.Response:
        assert self._engine is not None
        session_id = uuid4().hex
        session = RoomSession(
            Looks(photo=photo, engine=self._engine, face=launch.face, seed=launch.seed),
            max_session_s=self._options.max_session_s,
            on_over=lambda session: self._retire(session_id, session),
        )
        self._running[session_id] = session
        try:
            await session.start(launch.url, launch.token)
        except AtCapacity as error:
            return _refused(503, "AtCapacity", str(error))
        except PhotoError as error:
            return _refused(422, type(error).__name__, str(error))
        except TalkingAvatarError as error:
            return _refused(409, type(error).__name__, str(error))
        logger.info("an avatar has joined a room", extra={"session_id": session_id})
        body = Launched(session_id=session_id).model_dump_json()
        return web.Response(status=201, text=body, content_type="application/json")

    def _retire(self, session_id: str, session: RoomSession) -> None:
        self._running.pop(session_id, None)
        self._over[session_id] = session
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        logger.info("an avatar has left its room", extra={"session_id": session_id})

    async def _end(self, request: web.Request) -> web.Response:
        session_id = request.match_info["id"]
        session = self._running.get(session_id) or self._over.get(session_id)
        if session is None:
            return _refused(404, "NoSuchSession", "there is no such session")
        ended = await session.stop()
        return web.Response(text=ended.model_dump_json(), content_type="application/json")


def _refused(status: int, error: str, message: str) -> web.Response:
    body = Refusal(error=error, message=message).model_dump_json()
    return web.Response(status=status, text=body, content_type="application/json")
