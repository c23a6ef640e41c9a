"""The few things served by HTTP on the websocket's port: the page, its files, and a health check.

Takes a request's path. Gives a response. Never reads a path that a client made up: the files are
listed when the server starts, and a request can only name one of them.
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable

from websockets.datastructures import Headers
from websockets.http11 import Response

SOCKET_PATH = "/ws"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "worker-src 'self' blob:; connect-src 'self' ws: wss:; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'self'; form-action 'none'"
)


class Site:
    """The files of the page.

    Args:
        root: Folder that holds ``index.html``; None: the one that comes with this package.
    """

    def __init__(self, root: Traversable | None = None) -> None:
        root = files("talking_avatar_websocket") / "static" if root is None else root
        self._files: dict[str, Traversable] = {}
        if root.is_dir():
            self._list(root, "/")
        if "/index.html" in self._files:
            self._files["/"] = self._files["/index.html"]

    def _list(self, folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                self._list(entry, f"{prefix}{entry.name}/")
            elif _suffix(entry.name) in _TYPES:
                self._files[prefix + entry.name] = entry

    def respond(self, path: str) -> Response:
        """Answer a GET of a path, which may have a query."""
        path = path.partition("?")[0]
        if path == "/healthz":
            return _response(HTTPStatus.OK, b"ok\n", _TYPES[".txt"])
        file = self._files.get(path)
        if file is None:
            return _response(HTTPStatus.NOT_FOUND, b"not found\n", _TYPES[".txt"])
        return _response(HTTPStatus.OK, file.read_bytes(), _TYPES[_suffix(file.name)])


def forbidden(reason: str) -> Response:
    """Refuse."""
    return _response(HTTPStatus.FORBIDDEN, f"{reason}\n".encode(), _TYPES[".txt"])


def _suffix(name: str) -> str:
    return name[name.rfind(".") :].lower() if "." in name else ""


def _response(status: HTTPStatus, body: bytes, content_type: str) -> Response:
    headers = Headers(
        {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-cache",
            "Connection": "close",
            "Content-Security-Policy": _POLICY,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
    )
    return Response(status.value, status.phrase, headers, body)
