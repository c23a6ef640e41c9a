"""The whole program with the portrait engine: what ``talking-avatar serve`` does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from io import BytesIO
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from talking_avatar import NoFace, PortraitConfig
from talking_avatar.assets import portrait_path
from talking_avatar_websocket import (
    AvatarClient,
    AvatarServer,
    Limits,
    Picture,
    RateRange,
    connect,
    serve,
)
from talking_avatar_websocket._messages import (
    PhotoAccepted,
    PhotoRejected,
    Said,
    ServerMessage,
    TurnFinished,
)

SMALL = PortraitConfig(width=176, height=272)
WAIT_S = 60.0


class Silence:
    """A voice that says nothing for a fifth of a second."""

    sample_rate = 24_000

    async def speak(self, text: str, language: str | None) -> AsyncIterator[bytes]:
        yield bytes(2 * 4_800)


async def until(client: AvatarClient, *kinds: type[ServerMessage]) -> Any:
    async with asyncio.timeout(WAIT_S):
        async for event in client:
            if isinstance(event, kinds):
                return event
    raise AssertionError("the connection ended")


async def picture(client: AvatarClient) -> np.ndarray:
    async with asyncio.timeout(WAIT_S):
        async for event in client:
            if isinstance(event, Picture) and event.image is not None:
                return event.image
    raise AssertionError("the connection ended")


def gray() -> bytes:
    file = BytesIO()
    Image.new("RGB", (400, 400), (120, 120, 120)).save(file, "PNG")
    return file.getvalue()


def mirrored() -> bytes:
    """Give another photo: the bundled one, mirrored and darker."""
    image = np.asarray(Image.open(portrait_path()).convert("RGB"))[:, ::-1] // 2
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=92)
    return file.getvalue()


async def test_a_character_speaks_refuses_bad_photos_and_becomes_another() -> None:
    ready: asyncio.Future[AvatarServer] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            str(portrait_path()),
            engine=SMALL,
            port=0,
            voice=Silence(),
            limits=Limits(),
            video_rates=RateRange(max_kbps=600),
            on_ready=ready.set_result,
        )
    )
    async with asyncio.timeout(WAIT_S):
        server = await ready
    async with connect(server.socket_url) as client:
        before = await picture(client)
        assert before.shape == (272, 176, 3)
        assert before.std() > 20, "a photo, not a blank"
        await client.say_text("Hello.")
        said = await until(client, Said)
        finished = await until(client, TurnFinished)
        assert (finished.turn_id, finished.interrupted) == (said.turn_id, False)

        await client.send_photo(gray())
        rejected = await until(client, PhotoRejected, PhotoAccepted)
        assert isinstance(rejected, PhotoRejected)
        assert rejected.code == "no_face"
        await client.send_photo(b"no image at all")
        assert (await until(client, PhotoRejected, PhotoAccepted)).code == "unreadable_image"
        assert client.stream is not None
        assert client.stream.stream == 1, "the character stays as it was"

        await client.send_photo(mirrored())
        accepted = await until(client, PhotoRejected, PhotoAccepted)
        assert isinstance(accepted, PhotoAccepted)
        after = await picture(client)
        assert client.stream.stream == 2
        assert after.mean() < before.mean() * 0.8, "the darker photo is shown"
        await client.say_text("Again.")
        assert not (await until(client, TurnFinished)).interrupted
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        async with connect(server.socket_url):
            pass


async def test_a_photo_without_a_face_ends_it() -> None:
    with pytest.raises(NoFace):
        await serve(gray(), engine=SMALL, port=0)


async def test_the_command_prints_the_link_and_ends_at_ctrl_c() -> None:
    command = [sys.executable, "-m", "talking_avatar", "serve", "--port", "0", "--size", "176x272"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TALKING_AVATAR_TOKEN": "a-token-from-outside"},
    )
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        link = (await process.stdout.readline()).decode()
    assert link.startswith("open http://127.0.0.1:")
    url = link.removeprefix("open ").strip()

    def healthy() -> int:
        with urlopen(f"{url}healthz", timeout=10) as answer:
            return int(answer.status)

    assert await asyncio.to_thread(healthy) == 200
    socket_url = f"{url.replace('http', 'ws', 1)}ws"
    async with connect(socket_url, token="a-token-from-outside") as client:
        await picture(client)
        process.send_signal(signal.SIGINT)
        async for _ in client:
            pass
    async with asyncio.timeout(WAIT_S):
        out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    assert b"a-token" not in out + error
    assert b"Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls-key", "key.pem"], "--tls-key needs --tls-cert"),
        (["--tls-cert", "nowhere.pem"], "no file at nowhere.pem"),
        (["--token", "short"], "8 to 512 characters"),
        (["--photo", "nowhere.jpg"], "nowhere.jpg"),
        (["--size", "big"], "write WIDTHxHEIGHT"),
    ],
)
async def test_what_cannot_be_served_is_said_in_one_line(arguments: list[str], said: str) -> None:
    from typer.testing import CliRunner

    from talking_avatar.cli import app

    def run() -> Any:
        return CliRunner().invoke(app, ["serve", "--port", "0", *arguments])

    result = await asyncio.to_thread(run)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


async def test_without_the_plugin_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.util

    from typer.testing import CliRunner

    from talking_avatar.cli import app

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "talking_avatar_websocket" else found(name),
    )
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 2
    assert "pip install talking-avatar-websocket" in result.output
