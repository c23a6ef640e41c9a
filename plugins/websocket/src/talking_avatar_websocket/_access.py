"""Who may come in: tokens, and the origins of browsers' pages.

Takes what a client presents; gives whether it may come in and what it may do.
Never logs or repeats a token.
"""

from __future__ import annotations

import hmac
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

Permission: TypeAlias = Literal["speak", "view"]

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


class Access:
    """The tokens of a server.

    Args:
        token: Lets a client come in and speak; None: everybody may.
        viewer_token: Lets a client come in and watch; None: there is no such token.

    Raises:
        ValueError: A viewer's token without a speaker's, or a token that is too short.
    """

    def __init__(self, token: str | None = None, viewer_token: str | None = None) -> None:
        if token is None and viewer_token is not None:
            raise ValueError("viewer_token needs token: without it everybody may speak")
        for given in (token, viewer_token):
            if given is not None and not 8 <= len(given) <= 512:
                raise ValueError("a token has 8 to 512 characters")
        if token is not None and token == viewer_token:
            raise ValueError("token and viewer_token must differ")
        self._token = _encoded(token)
        self._viewer_token = _encoded(viewer_token)

    def __repr__(self) -> str:
        return f"Access(is_open={self.is_open})"

    @property
    def is_open(self) -> bool:
        """Whether everybody may come in."""
        return self._token is None

    def check(self, presented: str | None) -> Permission | None:
        """Give what a client may do; None: it may not come in.

        Takes the same time whichever token it is, and however much of it is right.
        """
        if self._token is None:
            return "speak"
        given = _encoded(presented) or b""
        may_speak = hmac.compare_digest(given, self._token)
        may_view = hmac.compare_digest(given, self._viewer_token or b"")
        if may_speak:
            return "speak"
        return "view" if may_view and self._viewer_token is not None else None


def _encoded(token: str | None) -> bytes | None:
    # A lone surrogate is valid JSON and no UTF-8: it must be a wrong token, not an exception.
    return None if token is None else token.encode("utf-8", "surrogatepass")


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine only."""
    return host in _LOOPBACK


def allows_origin(
    origin: str | None, host_header: str | None, *, allowed: frozenset[str], is_local: bool
) -> bool:
    """Whether a page of that origin may connect.

    A page on the same machine or host may; others must be named. Pages elsewhere are what this
    keeps out: a browser lets any of them open a websocket to any server.

    Args:
        origin: The header; None: the client is no browser's page.
        host_header: The header `Host` of the same request.
        allowed: Origins such as ``"https://example.org"`` that may connect as well.
        is_local: The server listens on loopback only. Then the names of loopback count and no
            other: a foreign name may be made to point here.
    """
    if origin is None or origin in allowed:
        return True
    try:
        parts, host = urlsplit(origin), urlsplit(f"//{host_header or ''}")
        origin_host, origin_port = parts.hostname, parts.port or _default_port(parts.scheme)
        served_host, served_port = host.hostname, host.port or _default_port(parts.scheme)
    except ValueError:
        return False
    if origin_host is None or served_host is None:
        return False
    if is_local:
        return is_loopback(origin_host) and is_loopback(served_host) and origin_port == served_port
    return (origin_host, origin_port) == (served_host, served_port)


def _default_port(scheme: str) -> int:
    return 443 if scheme in ("https", "wss") else 80
