"""The character on a worker: the agent's side.

Takes a photo and the way to a worker. Gives LiveKit's own output, which streams speech to the
worker's participant through the room. Never renders.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

import aiohttp
import numpy as np
from livekit.agents import get_job_context
from livekit.agents.types import ATTRIBUTE_PUBLISH_ON_BEHALF, APIConnectOptions
from livekit.agents.voice.avatar import DataStreamAudioOutput
from livekit.agents.voice.io import AudioOutput
from pydantic import ValidationError

from livekit import api, rtc
from talking_avatar import EngineFailed, PhotoError, TalkingAvatarError
from talking_avatar.cost import Usage
from talking_avatar.engine.base import Photo
from talking_avatar.errors import AtCapacity
from talking_avatar.stats import SessionStats

from ._character import Looks
from ._messages import TOPIC, Ended, Launch, Launched, Refusal, Report
from .log import logger
from .metrics import TurnMetrics

SAMPLE_RATE = 24_000
"""What speech is sent at: the engine's own."""
_START_S = 60.0
"""A worker that has a session to give has its first frame within a minute; weights are loaded."""


class WorkerError(TalkingAvatarError):
    """The worker could not be reached, or said no; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of the LiveKit server that the room is on."""

    url: str
    api_key: str
    api_secret: str = field(repr=False)


class Worker:
    """One worker, as an agent talks to it.

    Args:
        url: ``http://host:port``.
        token: What it was started with.
        options: Retries and time limit. Network errors and 5xx are tried again, but for a refusal;
            4xx never.
    """

    def __init__(self, url: str, token: str | None, options: APIConnectOptions) -> None:
        self.url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._options = options

    async def launch(self, launch: Launch) -> str:
        """Have a session; give its id.

        Raises:
            TalkingAvatarError: It could not be had.
        """
        answer = await self._request("POST", "/sessions", launch.model_dump_json())
        return Launched.model_validate_json(answer).session_id

    async def end(self, session_id: str) -> Ended:
        """End a session, whether it still is or not."""
        answer = await self._request("DELETE", f"/sessions/{session_id}", None)
        return Ended.model_validate_json(answer)

    async def _request(self, method: str, path: str, body: str | None) -> bytes:
        for num_left in reversed(range(self._options.max_retry + 1)):
            try:
                return await self._request_once(method, path, body)
            except (aiohttp.ClientError, TimeoutError) as error:
                if not num_left:
                    raise WorkerError(
                        f"the worker at {self.url} could not be reached: {error!r}"
                    ) from error
            await asyncio.sleep(self._options.retry_interval)
        raise AssertionError

    async def _request_once(self, method: str, path: str, body: str | None) -> bytes:
        limits = aiohttp.ClientTimeout(total=_START_S, connect=self._options.timeout)
        headers = {**self._headers, "Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(timeout=limits, headers=headers) as http,
            http.request(method, self.url + path, data=body) as response,
        ):
            answer = await response.read()
            if response.status < 400:
                return answer
            try:
                refusal = Refusal.model_validate_json(answer)
            except ValidationError:
                response.raise_for_status()
                raise
            raise _error_of(refusal)


class RemoteHost:
    """A session on a worker.

    Args:
        room: The agent's.
        looks: Of the character; its engine is the worker's.
        worker: Where it is.
        identity, name: Of the participant that the worker joins as.
        on_turn, on_error, on_ended: Told what the worker reports.
    """

    def __init__(
        self,
        room: rtc.Room,
        looks: Looks,
        worker: Worker,
        *,
        identity: str,
        name: str,
        on_turn: Callable[[TurnMetrics], None],
        on_error: Callable[[Exception, bool], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._room = room
        self._looks = looks
        self._worker = worker
        self._name = name
        self._on_turn = on_turn
        self._on_error = on_error
        self._on_ended = on_ended
        self._session_id: str | None = None
        self._usage = Usage()
        self.identity = identity
        self._sink = DataStreamAudioOutput(
            room,
            destination_identity=identity,
            sample_rate=SAMPLE_RATE,
            wait_remote_track=rtc.TrackKind.KIND_VIDEO,
            wait_playback_start=True,
            clear_buffer_timeout=2.0,
        )

    @property
    def sink(self) -> AudioOutput:
        return self._sink

    async def start(self, credentials: Credentials | None) -> None:
        """Have the worker join the room.

        Raises:
            TalkingAvatarError: It refused, or could not be reached.
        """
        assert credentials is not None
        self._room.on("data_received", self._take)
        launch = Launch(
            url=credentials.url,
            token=self._token(credentials),
            photo=await asyncio.to_thread(_encoded, self._looks.photo),
            face=self._looks.face,
            seed=self._looks.seed,
        )
        self._session_id = await self._worker.launch(launch)

    def _token(self, credentials: Credentials) -> str:
        """Give the right to join this room and no other, in the agent's name."""
        room_name, agent = _names_of(self._room)
        return (
            api.AccessToken(credentials.api_key, credentials.api_secret)
            .with_kind("agent")
            .with_identity(self.identity)
            .with_name(self._name)
            .with_grants(api.VideoGrants(room_join=True, room=room_name))
            .with_attributes({ATTRIBUTE_PUBLISH_ON_BEHALF: agent})
            .to_jwt()
        )

    async def aclose(self) -> None:
        """Have the worker leave; one that can't be reached leaves with the agent. Idempotent."""
        self._room.off("data_received", self._take)
        session_id, self._session_id = self._session_id, None
        if session_id is None:
            return
        try:
            self._usage = (await self._worker.end(session_id)).usage
        except TalkingAvatarError as error:
            logger.warning("the worker was not told to leave", extra={"reason": str(error)})

    def usage(self) -> Usage:
        """Give what the worker reported last: at each turn, each second, and at the end."""
        return self._usage

    def stats(self) -> SessionStats:
        """The worker keeps its own; each turn's are in its metrics."""
        return SessionStats()

    def _take(self, packet: rtc.DataPacket) -> None:
        sender = packet.participant
        if packet.topic != TOPIC or sender is None or sender.identity != self.identity:
            return
        report = Report.model_validate_json(packet.data)
        self._usage = report.usage
        if report.turn is not None:
            self._on_turn(report.turn)
        if report.error is not None:
            self._on_error(EngineFailed(report.error), report.is_final)
        if report.ended is not None:
            self._on_ended(report.ended)


def _encoded(photo: Photo) -> str:
    """Give an image file in base64."""
    if isinstance(photo, np.ndarray):
        import cv2

        _, file = cv2.imencode(".png", cv2.cvtColor(photo, cv2.COLOR_RGB2BGR))
        photo = file.tobytes()
    elif isinstance(photo, (str, PathLike)):
        photo = Path(fspath(photo)).read_bytes()
    return base64.b64encode(photo).decode()


def _error_of(refusal: Refusal) -> TalkingAvatarError:
    """Give the error that the worker met, as near as its text allows."""
    text = f"{refusal.message} ({refusal.error} on the worker)"
    if refusal.error == "AtCapacity":
        return AtCapacity(text, needed_cores=0.0, num_cores=0.0)
    kinds = {kind.__name__ for kind in PhotoError.__subclasses__()}
    return PhotoError(text) if refusal.error in kinds else WorkerError(text)


def _names_of(room: rtc.Room) -> tuple[str, str]:
    """Give the names of a room and of the agent in it, which may still have to connect."""
    if room.isconnected():
        return room.name, room.local_participant.identity
    job = get_job_context(required=False)
    if job is None:
        raise WorkerError("connect the room first: a worker's token names the agent it acts for")
    return job.job.room.name, job.local_participant_identity
