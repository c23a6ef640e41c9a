"""Tokens that let a participant in: where the double and a real server agree. Needs no aiortc."""

from __future__ import annotations

from livekit import api


def participant_token(
    api_key: str,
    api_secret: str,
    identity: str,
    *,
    room: str,
    is_agent: bool = False,
    attributes: dict[str, str] | None = None,
) -> str:
    """Give a token for one participant of a server, double or real, that knows this key."""
    token = (
        api.AccessToken(api_key, api_secret)
        .with_identity(identity)
        .with_grants(api.VideoGrants(room_join=True, room=room, agent=is_agent))
        .with_attributes(attributes or {})
    )
    return (token.with_kind("agent") if is_agent else token).to_jwt()
