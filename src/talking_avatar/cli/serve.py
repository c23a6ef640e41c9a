"""``talking-avatar serve``: one character on a page, with the websocket plugin's help."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talking_avatar.cli.cost import Currency, Rates, RatesFile, rate_card
from talking_avatar.cli.errors import errors_in_one_line
from talking_avatar.cli.render import (
    DEFAULT_SIZE,
    Checkpoint,
    Devices,
    EngineName,
    Face,
    Seed,
    Size,
    engine_config,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from talking_avatar.config import EngineConfig
    from talking_avatar.cost import RateCard
    from talking_avatar_websocket import AvatarServer

_INSTALL = "pip install talking-avatar-websocket"
_TOKEN_BYTES = 16
_NO_TLS = (
    "without --tls-cert everything travels unencrypted, the token too, and browsers give pages "
    "neither a microphone nor video decoders: they show JPEG"
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    photo: Annotated[
        Path | None,
        typer.Option("--photo", "-p", help="Any still image with a face; else the bundled one."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="TALKING_AVATAR_TOKEN",
            show_envvar=True,
            help="What a visitor must present; made up where the host lets others in.",
        ),
    ] = None,
    viewer_token: Annotated[
        str | None,
        typer.Option(
            "--viewer-token",
            envvar="TALKING_AVATAR_VIEWER_TOKEN",
            show_envvar=True,
            help="Lets a visitor watch and not speak.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Certificate chain (PEM): https and wss.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="Its private key, if in another file.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="Origin of a page elsewhere; again for each further."),
    ] = None,
    engine: EngineName = "portrait",
    size: Size = DEFAULT_SIZE,
    seed: Seed = 0,
    face: Face = None,
    checkpoint: Checkpoint = None,
    device: Devices = None,
    rate: Rates = None,
    rates: RatesFile = None,
    currency: Currency = "USD",
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="File that keeps what each session used.")
    ] = None,
) -> None:
    """Serve a live character as a page: it speaks what you type, or with your own voice."""
    import asyncio
    import secrets

    with errors_in_one_line(), suppress(KeyboardInterrupt):
        _require_plugin()
        config = engine_config(engine, size, checkpoint, device or [])
        ssl = _ssl_context(tls_cert, tls_key)
        if ssl is None and host not in _LOOPBACK:
            typer.echo(f"note: {_NO_TLS}", err=True)
        was_made_up = token is None and host not in _LOOPBACK
        if was_made_up:
            token = secrets.token_urlsafe(_TOKEN_BYTES)
        asyncio.run(
            _serve(
                photo,
                config,
                host=host,
                port=port,
                token=token,
                viewer_token=viewer_token,
                ssl=ssl,
                allowed_origins=tuple(allow_origin or ()),
                face=face,
                seed=seed,
                rates=rate_card(rate, rates, currency),
                ledger=ledger,
                shown_token=token if was_made_up else None,
            )
        )


def _require_plugin() -> None:
    from importlib.util import find_spec

    from talking_avatar.errors import MissingDependency

    if find_spec("talking_avatar_websocket") is None:
        raise MissingDependency(f"serving needs the websocket plugin: {_INSTALL}")


def _ssl_context(cert: Path | None, key: Path | None) -> SSLContext | None:
    if cert is None:
        if key is not None:
            raise ValueError("--tls-key needs --tls-cert")
        return None
    import ssl

    for file in (cert, key):
        if file is not None and not file.is_file():
            raise FileNotFoundError(f"no file at {file}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


async def _serve(
    photo: Path | None,
    config: EngineConfig,
    *,
    host: str,
    port: int,
    token: str | None,
    viewer_token: str | None,
    ssl: SSLContext | None,
    allowed_origins: tuple[str, ...],
    face: int | None,
    seed: int,
    rates: RateCard | None,
    ledger: Path | None,
    shown_token: str | None,
) -> None:
    from talking_avatar.assets import portrait_path
    from talking_avatar_websocket import serve as serve_app

    def announce(server: AvatarServer) -> None:
        typer.echo(f"open {server.url}")
        if shown_token is not None:
            typer.echo(f"token {shown_token}")
        typer.echo("Ctrl+C ends it", err=True)

    await serve_app(
        str(photo or portrait_path()),
        engine=config,
        host=host,
        port=port,
        token=token,
        viewer_token=viewer_token,
        ssl=ssl,
        allowed_origins=allowed_origins,
        face=face,
        seed=seed,
        rates=rates,
        ledger=ledger,
        on_ready=announce,
    )
