"""The two connections that a LiveKit client has: one for what it publishes, one for what it gets.

Takes session descriptions, candidates and media; gives the same. Knows neither rooms nor signals.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import Any, Protocol

from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.contrib.media import MediaRelay
from aiortc.jitterbuffer import JitterBuffer
from aiortc.mediastreams import MediaStreamError
from aiortc.sdp import SessionDescription, candidate_from_sdp
from livekit.protocol import models

logger = logging.getLogger(__name__)

_ANSWER_S = 10
_KEPT_PACKETS = 1
"""Of sound, 20 ms each. aiortc keeps a picture until the next begins, 42 ms at 24 fps. Of sound it
would keep 80 ms, on top of the 20 ms that a packet takes to fill, which its reports of time leave
out. So both are late by the same; a real server keeps neither."""


class Owner(Protocol):
    """Who is told what happens on the connections."""

    async def send_offer(self, sdp: str) -> None: ...
    async def media_came(self, track_id: str) -> None: ...
    async def media_gone(self, sid: str) -> None: ...
    def data_came(self, label: str, packet: models.DataPacket) -> None: ...


class Peer:
    """Both connections of one client."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        here = RTCConfiguration(iceServers=[])
        self._publisher = RTCPeerConnection(here)
        self._subscriber = RTCPeerConnection(here)
        self._relay = MediaRelay()
        self._media: dict[str, MediaStreamTrack] = {}  # by the client's id, then by ours
        self._mids: dict[str, str] = {}  # our id of what each section of its offer carries
        self._drains: list[asyncio.Task[None]] = []
        self._subscribed: set[str] = set()
        self._negotiating = asyncio.Lock()
        self._answered: asyncio.Future[None] | None = None
        self._channels: dict[str, RTCDataChannel] = {
            "_reliable": self._subscriber.createDataChannel("_reliable"),
            "_lossy": self._subscriber.createDataChannel("_lossy", ordered=False, maxRetransmits=0),
        }
        self._publisher.on("datachannel", self._listen_to)

    # -- what the client publishes

    async def answer_to(self, sdp: str) -> str:
        """Take the client's offer; give our answer."""
        before = {t.mid for t in self._publisher.getTransceivers()}
        await self._publisher.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        await self._publisher.setLocalDescription(await self._publisher.createAnswer())
        track_ids = _track_ids(sdp)
        for transceiver in self._publisher.getTransceivers():
            mid = str(transceiver.mid)
            if transceiver.mid not in before and mid in track_ids:
                receiver: Any = transceiver.receiver
                track = self._media[track_ids[mid]] = receiver.track
                if track.kind == "audio":
                    kept = JitterBuffer(capacity=16, prefetch=_KEPT_PACKETS)
                    receiver._RTCRtpReceiver__jitter_buffer = kept
                self._drains.append(asyncio.create_task(_drain(self._relay.subscribe(track))))
                self._mids[mid] = track_ids[mid]
                await self._owner.media_came(track_ids[mid])
            elif mid in self._mids and mid not in track_ids:
                sid = self._mids.pop(mid)
                self._media.pop(sid, None)
                await self._owner.media_gone(sid)
        return self._publisher.localDescription.sdp

    def name_media(self, track_id: str, sid: str) -> None:
        """Call a track by our id from now on."""
        self._media[sid] = self._media.pop(track_id)
        self._mids = {mid: sid if id_ == track_id else id_ for mid, id_ in self._mids.items()}

    def media_of(self, sid: str) -> MediaStreamTrack | None:
        """Give a track; None if its media has not come."""
        return self._media.get(sid)

    def copy_of(self, track: MediaStreamTrack) -> MediaStreamTrack:
        """Give one more taker its own."""
        return self._relay.subscribe(track)

    def _listen_to(self, channel: RTCDataChannel) -> None:
        def on_message(data: bytes | str) -> None:
            if isinstance(data, bytes):
                self._owner.data_came(channel.label, models.DataPacket.FromString(data))

        channel.on("message", on_message)

    # -- what the client gets

    async def subscribe(self, stream_id: str, sid: str, publisher: Peer) -> bool:
        """Send it a track; False if it gets that already, or there is no such track."""
        track = publisher.media_of(sid)
        if track is None or sid in self._subscribed:
            return False
        self._subscribed.add(sid)
        sender = self._subscriber.addTransceiver(track.kind, direction="sendonly").sender
        sender._stream_id, sender._track_id = stream_id, sid  # what clients know a track by
        await self.offer()
        await self._wait_until_connected()
        # Not before: a copy keeps what nobody takes, and a second of it would be a second late.
        sender.replaceTrack(publisher.copy_of(track))
        return True

    async def _wait_until_connected(self) -> None:
        for _ in range(_ANSWER_S * 20):
            if self._subscriber.connectionState != "connecting":
                return
            await asyncio.sleep(0.05)

    async def offer(self) -> None:
        """Offer what there is to get, and wait for the client's answer."""
        async with self._negotiating:
            await self._subscriber.setLocalDescription(await self._subscriber.createOffer())
            self._answered = asyncio.get_running_loop().create_future()
            await self._owner.send_offer(self._subscriber.localDescription.sdp)
            await asyncio.wait_for(self._answered, _ANSWER_S)

    async def take_answer(self, sdp: str) -> None:
        await self._subscriber.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def send_data(self, label: str, data: bytes) -> None:
        channel = self._channels.get(label)
        if channel is not None and channel.readyState == "open":
            channel.send(data)

    # -- both

    async def add_candidate(self, text: str, *, is_publisher: bool) -> None:
        said: dict[str, Any] = json.loads(text or "{}")
        if not said.get("candidate"):
            return
        candidate = candidate_from_sdp(said["candidate"].split(":", 1)[1])
        candidate.sdpMid, candidate.sdpMLineIndex = said.get("sdpMid"), said.get("sdpMLineIndex")
        connection = self._publisher if is_publisher else self._subscriber
        try:
            await connection.addIceCandidate(candidate)
        except Exception:  # one that came too early or that we can't use: there are others
            logger.debug("a candidate was not taken", exc_info=True)

    async def aclose(self) -> None:
        if self._answered is not None:
            self._answered.cancel()
        for drain in self._drains:
            drain.cancel()
        await self._publisher.close()
        await self._subscriber.close()


async def _drain(track: MediaStreamTrack) -> None:
    """Take what comes, so that whoever subscribes later does not get it all at once."""
    with suppress(MediaStreamError):
        while True:
            await track.recv()


def _track_ids(sdp: str) -> dict[str, str]:
    """Give the track id that each sending section of an offer carries, by its mid."""
    found = {}
    for section in SessionDescription.parse(sdp).media:
        if section.kind in ("audio", "video") and section.direction in ("sendonly", "sendrecv"):
            found[section.rtp.muxId] = (section.msid or "").split(" ")[-1]
    return found
