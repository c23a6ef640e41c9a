"""A test double of a LiveKit server: real clients connect to it, see, hear and call each other.

    async with RoomServer() as server:
        await room.connect(server.url, server.token("alice", room="demo"))

It speaks the signalling protocol over a websocket, forwards data packets, and passes media on by
decoding and encoding it again. It is for tests of small pictures and few people on one machine: no
simulcast, no bandwidth estimation, no permissions, no reconnection, no TURN. Never use it to serve
anyone. Whatever a test proves with it should be proved with a real server as well.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from types import TracebackType

from aiohttp import WSMsgType, web
from livekit.api.access_token import Claims
from livekit.protocol import models, rtc
from livekit.protocol import room as room_api

from livekit import api

from .peer import Peer
from .tokens import participant_token

logger = logging.getLogger(__name__)

_CODECS = ("video/VP8", "audio/opus")
_PING_S = 5


class _Participant:
    """One client: what it is called, what it publishes, and its two connections."""

    def __init__(self, room: _Room, claims: Claims, socket: web.WebSocketResponse) -> None:
        self.room = room
        self.sid = "PA_" + secrets.token_hex(6)
        self.identity = claims.identity
        self.name = claims.name
        self.kind = (
            models.ParticipantInfo.AGENT
            if claims.kind == "agent"
            else models.ParticipantInfo.STANDARD
        )
        self.attributes = dict(claims.attributes or {})
        self.tracks: dict[str, models.TrackInfo] = {}
        self.unpublished: dict[str, models.TrackInfo] = {}  # asked for, by the client's own id
        self.socket = socket
        self.peer = Peer(self)

    def info(self, state: models.ParticipantInfo.State) -> models.ParticipantInfo:
        return models.ParticipantInfo(
            sid=self.sid,
            identity=self.identity,
            name=self.name,
            state=state,
            kind=self.kind,
            attributes=self.attributes,
            tracks=list(self.tracks.values()),
            joined_at=int(time.time()),
            permission=models.ParticipantPermission(
                can_subscribe=True, can_publish=True, can_publish_data=True
            ),
        )

    async def tell(self, response: rtc.SignalResponse) -> None:
        """Send a signal; to one that is leaving, nothing."""
        with suppress(ConnectionError):
            if not self.socket.closed:
                await self.socket.send_bytes(response.SerializeToString())

    # -- what its connections report

    async def send_offer(self, sdp: str) -> None:
        offer = rtc.SessionDescription(type="offer", sdp=sdp, id=1)
        await self.tell(rtc.SignalResponse(offer=offer))

    async def media_came(self, track_id: str) -> None:
        """Media of a track it asked to publish has come: everyone else gets it."""
        info = self.unpublished.pop(track_id, None)
        if info is None:
            logger.warning("media of %s that %s never announced", track_id, self.identity)
            return
        self.peer.name_media(track_id, info.sid)
        for other in self.room.others(self):
            await other.subscribe(self, info.sid)

    async def media_gone(self, sid: str) -> None:
        self.tracks.pop(sid, None)
        await self.room.announce(self)

    def data_came(self, label: str, packet: models.DataPacket) -> None:
        packet.participant_identity, packet.participant_sid = self.identity, self.sid
        wanted = set(packet.destination_identities)
        for other in self.room.others(self):
            if not wanted or other.identity in wanted:
                other.peer.send_data(label, packet.SerializeToString())

    async def subscribe(self, publisher: _Participant, sid: str) -> None:
        # Camera and microphone in one stream, as a real server has them: clients play it in sync.
        stream_id = f"{publisher.sid}|{publisher.tracks[sid].stream}"
        if await self.peer.subscribe(stream_id, sid, publisher.peer):
            subscribed = rtc.TrackSubscribed(track_sid=sid)
            await publisher.tell(rtc.SignalResponse(track_subscribed=subscribed))


class _Room:
    def __init__(self, name: str) -> None:
        self.name = name
        self.sid = "RM_" + secrets.token_hex(6)
        self.participants: dict[str, _Participant] = {}

    def others(self, participant: _Participant) -> list[_Participant]:
        return [other for other in self.participants.values() if other is not participant]

    async def announce(
        self,
        participant: _Participant,
        state: models.ParticipantInfo.State = models.ParticipantInfo.ACTIVE,
    ) -> None:
        """Tell everyone in the room what a participant is now."""
        update = rtc.ParticipantUpdate(participants=[participant.info(state)])
        for other in list(self.participants.values()):
            await other.tell(rtc.SignalResponse(update=update))

    def info(self) -> models.Room:
        return models.Room(sid=self.sid, name=self.name, num_participants=len(self.participants))


class RoomServer:
    """Serves rooms on a free port of the loopback interface.

    Attributes:
        url: For ``room.connect``; known once started.
        api_key, api_secret: For tokens.
    """

    def __init__(self) -> None:
        self.api_key, self.api_secret = "devkey", secrets.token_hex(32)
        self.url = ""
        self._rooms: dict[str, _Room] = {}
        self._runner: web.AppRunner | None = None

    def token(
        self,
        identity: str,
        *,
        room: str,
        is_agent: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> str:
        """Give a token for one participant."""
        return participant_token(
            self.api_key,
            self.api_secret,
            identity,
            room=room,
            is_agent=is_agent,
            attributes=attributes,
        )

    async def __aenter__(self) -> RoomServer:
        app = web.Application()
        app.router.add_get("/rtc", self._connect)
        app.router.add_get("/rtc/validate", self._validate)
        app.router.add_post("/twirp/livekit.RoomService/RemoveParticipant", self._remove)
        self._runner = web.AppRunner(app, shutdown_timeout=1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"ws://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        for room in self._rooms.values():
            for participant in list(room.participants.values()):
                await participant.socket.close()
        await self._runner.cleanup()

    # -- requests

    def _claims(self, request: web.Request) -> Claims:
        header = request.headers.get("Authorization", "").removeprefix("Bearer ")
        token = request.query.get("access_token") or header
        try:
            return api.TokenVerifier(self.api_key, self.api_secret).verify(token)
        except Exception as error:
            raise web.HTTPUnauthorized(text="the token is not valid") from error

    async def _validate(self, request: web.Request) -> web.Response:
        self._claims(request)
        headers = {"Access-Control-Allow-Origin": "*"}
        return web.Response(text="success", headers=headers)

    async def _remove(self, request: web.Request) -> web.Response:
        self._claims(request)
        asked = room_api.RoomParticipantIdentity.FromString(await request.read())
        room = self._rooms.get(asked.room)
        participant = room.participants.get(asked.identity) if room else None
        if participant is None:
            return web.json_response(
                {"code": "not_found", "msg": "no such participant"}, status=404
            )
        leave = rtc.LeaveRequest(
            reason=models.PARTICIPANT_REMOVED, action=rtc.LeaveRequest.DISCONNECT
        )
        await participant.tell(rtc.SignalResponse(leave=leave))
        await participant.socket.close()
        return web.Response(
            body=room_api.RemoveParticipantResponse().SerializeToString(),
            content_type="application/protobuf",
        )

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        claims = self._claims(request)
        name = claims.video.room if claims.video else ""
        room = self._rooms.setdefault(name or "", _Room(name or ""))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if before := room.participants.get(claims.identity):
            await before.socket.close()  # the newer connection of an identity wins
        participant = _Participant(room, claims, socket)
        await self._welcome(participant)
        offering = asyncio.create_task(self._offer_all(participant))
        try:
            await self._listen(participant)
        finally:
            offering.cancel()
            await self._part_with(participant)
        return socket

    async def _welcome(self, participant: _Participant) -> None:
        room, active = participant.room, models.ParticipantInfo.ACTIVE
        server = models.ServerInfo(
            edition=models.ServerInfo.Standard, version="1.9.0", protocol=16, region="test"
        )
        join = rtc.JoinResponse(
            room=room.info(),
            participant=participant.info(active),
            other_participants=[other.info(active) for other in room.participants.values()],
            server_version=server.version,
            server_info=server,
            subscriber_primary=False,
            ping_interval=_PING_S,
            ping_timeout=3 * _PING_S,
            enabled_publish_codecs=[models.Codec(mime=mime) for mime in _CODECS],
        )
        await participant.tell(rtc.SignalResponse(join=join))
        room.participants[participant.identity] = participant
        await room.announce(participant)

    async def _offer_all(self, participant: _Participant) -> None:
        await participant.peer.offer()
        for other in participant.room.others(participant):
            for sid in list(other.tracks):
                await participant.subscribe(other, sid)

    async def _listen(self, participant: _Participant) -> None:
        async for message in participant.socket:
            if message.type is WSMsgType.BINARY:
                request = rtc.SignalRequest.FromString(message.data)
                if request.WhichOneof("message") == "leave":
                    return
                await self._handle(participant, request)

    async def _handle(self, participant: _Participant, request: rtc.SignalRequest) -> None:
        match request.WhichOneof("message"):
            case "offer":
                sdp = await participant.peer.answer_to(request.offer.sdp)
                answer = rtc.SessionDescription(type="answer", sdp=sdp, id=request.offer.id)
                await participant.tell(rtc.SignalResponse(answer=answer))
            case "answer":
                await participant.peer.take_answer(request.answer.sdp)
            case "trickle":
                is_publisher = request.trickle.target == rtc.SignalTarget.PUBLISHER
                await participant.peer.add_candidate(
                    request.trickle.candidateInit, is_publisher=is_publisher
                )
            case "add_track":
                await self._add_track(participant, request.add_track)
            case "update_metadata":
                await self._update(participant, request.update_metadata)
            case "ping_req":
                pong = rtc.Pong(
                    last_ping_timestamp=request.ping_req.timestamp,
                    timestamp=int(time.time() * 1e3),
                )
                await participant.tell(rtc.SignalResponse(pong_resp=pong))
            case "ping":
                await participant.tell(rtc.SignalResponse(pong=int(time.time() * 1e3)))

    async def _add_track(self, participant: _Participant, asked: rtc.AddTrackRequest) -> None:
        info = models.TrackInfo(
            sid="TR_" + secrets.token_hex(6),
            type=asked.type,
            name=asked.name,
            source=asked.source,
            width=asked.width,
            height=asked.height,
            muted=asked.muted,
            stream=asked.stream or _stream_of(asked.source),
            mime_type="audio/opus" if asked.type == models.AUDIO else "video/VP8",
        )
        participant.unpublished[asked.cid] = participant.tracks[info.sid] = info
        published = rtc.TrackPublishedResponse(cid=asked.cid, track=info)
        await participant.tell(rtc.SignalResponse(track_published=published))
        await participant.room.announce(participant)

    async def _update(
        self, participant: _Participant, asked: rtc.UpdateParticipantMetadata
    ) -> None:
        participant.attributes.update(asked.attributes)
        response = rtc.RequestResponse(request_id=asked.request_id)
        await participant.tell(rtc.SignalResponse(request_response=response))
        await participant.room.announce(participant)

    async def _part_with(self, participant: _Participant) -> None:
        room = participant.room
        if room.participants.get(participant.identity) is participant:
            del room.participants[participant.identity]
        await room.announce(participant, models.ParticipantInfo.DISCONNECTED)
        await participant.peer.aclose()


def _stream_of(source: models.TrackSource) -> str:
    """Give what a real server calls the stream that a track of this source belongs to."""
    is_screen = source in (models.SCREEN_SHARE, models.SCREEN_SHARE_AUDIO)
    return "screen" if is_screen else "camera"
