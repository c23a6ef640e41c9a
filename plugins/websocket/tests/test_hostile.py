"""Clients that do not read, do not speak, or speak nonsense: cases 35, 37 and 40."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any

import psutil
import pytest
import structlog
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from talking_avatar_websocket import AvatarClient, Limits, Picture, Refused, Sound, connect
from talking_avatar_websocket._messages import CLIENT_MESSAGES, ErrorMessage, Hello

MARK = "x7Qs3cr3tMark"
TOKEN = "the-very-secret-token"
WAIT_S = 30.0


async def watch(client: AvatarClient, num_frames: int) -> list[Picture]:
    """Take so many frames; each must follow the one before."""
    frames: list[Picture] = []
    async with asyncio.timeout(WAIT_S + num_frames / 12):
        async for event in client:
            if isinstance(event, Picture):
                frames.append(event)
            if len(frames) == num_frames:
                break
    return frames


def num_missing(frames: list[Picture]) -> int:
    """Count the frames that the server made and this client did not get."""
    first, last = frames[0].packet.sequence, frames[-1].packet.sequence
    return last - first + 1 - len(frames)


@asynccontextmanager
async def raw(
    url: str, hello: Hello | None = None, **options: Any
) -> AsyncIterator[ClientConnection]:
    """Give a bare websocket, after its hello if there is one."""
    async with open_socket(
        url, compression=None, max_size=2**22, close_timeout=0.1, **options
    ) as socket:
        if hello is not None:
            await socket.send(hello.to_text())
        yield socket


async def ended(socket: ClientConnection) -> int | None:
    """Wait for the end of a connection; give its close code."""
    with suppress(ConnectionClosed):
        async with asyncio.timeout(WAIT_S):
            async for _ in socket:
                pass
    return socket.close_code


class TestSlowViewers:
    """Case 35."""

    async def test_one_that_never_reads_is_closed_and_holds_nobody_back(self, stage: Any) -> None:
        limits = Limits(stuck_s=1.0, max_queue_bytes=64 * 1024)
        async with stage(limits=limits) as running, connect(running.url) as healthy:
            reader, writer = await never_reading(running.url)
            await watch(healthy, 2)
            assert running.server.num_viewers == 2
            frames = await watch(healthy, 48)
            assert num_missing(frames) == 0
            async with asyncio.timeout(WAIT_S):
                while running.server.num_viewers > 1:
                    stuck = running.server.audience.viewers[1]
                    assert stuck.outbox.num_bytes <= limits.max_queue_bytes
                    await watch(healthy, 4)
            writer.close()
            del reader

    async def test_one_that_never_reads_does_not_hold_up_the_servers_end(self, stage: Any) -> None:
        async with stage(limits=Limits(stuck_s=300.0)) as running, connect(running.url) as healthy:
            _, writer = await never_reading(running.url)
            await watch(healthy, 48)
            async with asyncio.timeout(WAIT_S):
                await running.server.aclose()
            assert running.server.num_viewers == 0
            writer.close()

    async def test_one_that_reads_late_gets_sound_in_order_and_a_key_frame(
        self, stage: Any
    ) -> None:
        limits = Limits(max_video_lag_s=0.2, max_audio_lag_s=0.6)
        async with stage(limits=limits) as running, connect(running.url) as healthy:
            async with connect(running.url, video=("jpeg",), audio=("pcm",)) as slow:
                viewer = running.server.audience.viewers[1]
                viewer_socket = slow._socket.transport
                viewer_socket.pause_reading()
                async with asyncio.timeout(WAIT_S):
                    while viewer.outbox.num_dropped_video < 20:
                        await watch(healthy, 4)
                viewer_socket.resume_reading()
                sequences: list[int] = []
                frames: list[Picture] = []
                async with asyncio.timeout(WAIT_S):
                    async for event in slow:
                        if isinstance(event, Sound):
                            sequences.append(event.packet.sequence)
                        elif isinstance(event, Picture):
                            frames.append(event)
                            if num_missing(frames) and len(frames) > 20:
                                break
                assert sequences == sorted(set(sequences)), "in order, none twice"
                assert num_missing(frames) > 0
                assert all(frame.image is not None for frame in frames)
            frames = await watch(healthy, 24)
            assert num_missing(frames) == 0

    @pytest.mark.slow
    async def test_two_hundred_that_never_read(self, stage: Any) -> None:
        limits = Limits(max_viewers=256, stuck_s=5.0, max_queue_bytes=64 * 1024)
        process = psutil.Process()
        async with stage(limits=limits) as running, connect(running.url) as healthy:
            await watch(healthy, 24)
            gc.collect()
            rss_before = process.memory_info().rss
            writers = []
            for _ in range(200):
                _, writer = await never_reading(running.url)
                writers.append(writer)
            assert running.server.num_viewers == 201
            await watch(healthy, 48)
            filled = process.memory_info().rss - rss_before
            frames = await watch(healthy, 72)
            grown = process.memory_info().rss - rss_before
            # What may wait, and 96 KiB for both ends of a socket and the library's buffer.
            assert grown < 200 * (limits.max_queue_bytes + 96 * 1024), f"{grown / 1e6:.1f} MB"
            assert grown - filled < 10e6, f"{filled / 1e6:.1f}, then {grown / 1e6:.1f} MB"
            assert num_missing(frames) == 0
            async with asyncio.timeout(60):
                while running.server.num_viewers > 1:
                    await watch(healthy, 12)
            for writer in writers:
                writer.close()
            after = await watch(healthy, 24)
            assert num_missing(after) == 0


async def never_reading(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Upgrade, say hello, and read nothing ever again."""
    host, port = url.removeprefix("ws://").removesuffix("/ws").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    hello = Hello(video=["jpeg"], audio=["pcm"], role="viewer").to_text().encode()
    writer.write(b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(hello)) + bytes(4) + hello)
    await writer.drain()
    while True:
        head = await reader.readexactly(2)
        size = head[1] & 127
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2))
        elif size == 127:
            size = int.from_bytes(await reader.readexactly(8))
        if b'"welcome"' in await reader.readexactly(size):
            break
    transport = writer.transport
    assert isinstance(transport, asyncio.ReadTransport)
    transport.pause_reading()
    return reader, writer


class TestHalfOpen:
    """Case 37."""

    async def test_fifty_are_dropped_by_their_deadline_and_others_get_in(self, stage: Any) -> None:
        limits = Limits(open_timeout_s=0.8, hello_timeout_s=0.8)
        async with stage(limits=limits) as running:
            host, port = running.url.removeprefix("ws://").removesuffix("/ws").split(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(17)]
            half = [await asyncio.open_connection(host, int(port)) for _ in range(17)]
            for _, writer in half:
                writer.write(b"GET /ws HTTP/1.1\r\nHost: ")
            async with AsyncExitStack() as stack:
                mute = [await stack.enter_async_context(raw(running.url)) for _ in range(16)]
                async with connect(running.url) as client:
                    assert client.welcome.has_floor
                    assert num_missing(await watch(client, 24)) == 0
                    for reader, writer in silent + half:
                        async with asyncio.timeout(WAIT_S):
                            await reader.read()
                        writer.close()
                    assert [await ended(socket) for socket in mute] == [4400] * 16
                    assert len(running.server._connections) == 1

    async def test_the_oldest_makes_room(self, stage: Any) -> None:
        async with stage(limits=Limits(max_waiting=3)) as running, AsyncExitStack() as stack:
            mute = [await stack.enter_async_context(raw(running.url)) for _ in range(5)]
            assert await ended(mute[0]) == 4400
            assert await ended(mute[1]) == 4400
            async with connect(running.url) as client:
                await watch(client, 1)

    async def test_sockets_beyond_the_limit_are_closed(self, stage: Any) -> None:
        async with stage(limits=Limits(max_connections=4)) as running:
            host, port = running.url.removeprefix("ws://").removesuffix("/ws").split(":")
            open_ones = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
            for reader, _ in open_ones[4:]:
                async with asyncio.timeout(WAIT_S):
                    with suppress(ConnectionResetError):
                        assert await reader.read() == b""
            for _, writer in open_ones:
                writer.close()

    async def test_one_that_vanishes_is_noticed(self, stage: Any) -> None:
        limits = Limits(heartbeat_s=0.3)
        async with stage(limits=limits) as running, raw(running.url, Hello()) as socket:
            await socket.recv()
            assert running.server.num_viewers == 1
            socket.transport.pause_reading()  # as if the cable were cut: no pong
            async with asyncio.timeout(WAIT_S):
                while running.server.num_viewers:
                    await asyncio.sleep(0.05)


class TestNonsense:
    @pytest.mark.parametrize(
        ("message", "code"),
        [
            (b"\x00" * 70_000, 1009),
            ("x" * 70_000, 1009),
            (b"\x10\x11\x00\x08aa", None),
        ],
    )
    async def test_what_is_too_long_closes(
        self, stage: Any, message: str | bytes, code: int | None
    ) -> None:
        async with stage() as running, connect(running.url) as healthy:
            async with raw(running.url, Hello()) as socket:
                await socket.send(message)
                if code is not None:
                    assert await ended(socket) == code
            assert num_missing(await watch(healthy, 6)) == 0

    async def test_text_that_is_no_utf8_closes(self, stage: Any) -> None:
        async with stage() as running, raw(running.url, Hello()) as socket:
            await socket.send(b"\xff\xfe{", text=True)
            assert await ended(socket) == 1007

    async def test_a_flood_of_nonsense_is_closed_and_a_healthy_viewer_keeps_its_frames(
        self, stage: Any
    ) -> None:
        rng = random.Random(7)
        kinds = [model.model_fields["type"].default for model in CLIENT_MESSAGES]

        def nonsense() -> str | bytes:
            match rng.randrange(4):
                case 0:
                    return rng.randbytes(rng.randrange(200))
                case 1:
                    return bytes([rng.choice([16, 17]), 17, 0, 8]) + rng.randbytes(9)
                case 2:
                    return json.dumps({"type": rng.choice(kinds), "text": [1], "pts_us": "x"})
                case _:
                    return "{" * rng.randrange(500)

        async def attack(url: str) -> int | None:
            async with raw(url, Hello()) as socket:
                with suppress(ConnectionClosed):
                    for n in range(3_000):
                        await socket.send(nonsense())
                        if n % 50 == 0:
                            await asyncio.sleep(0)
                return await ended(socket)

        async with stage() as running, connect(running.url) as healthy:
            await watch(healthy, 1)
            watching = asyncio.create_task(watch(healthy, 72))
            codes = await asyncio.gather(*(attack(running.url) for _ in range(10)))
            assert set(codes) <= {4422, 4429}
            assert num_missing(await watching) == 0

    @pytest.mark.slow
    async def test_a_long_fuzz_run_leaves_memory_as_it_was(self, stage: Any) -> None:
        rng = random.Random(11)
        process = psutil.Process()
        async with stage() as running, connect(running.url) as healthy:
            sizes = []
            for _ in range(6):
                for _ in range(60):
                    async with raw(running.url) as socket:
                        with suppress(ConnectionClosed):
                            if rng.random() < 0.7:
                                await socket.send(Hello().to_text())
                            for _ in range(rng.randrange(40)):
                                await socket.send(rng.randbytes(rng.randrange(1, 3_000)))
                            await asyncio.sleep(0)
                frames = await watch(healthy, 12)
                assert num_missing(frames) == 0
                gc.collect()
                sizes.append(process.memory_info().rss)
            assert sizes[-1] - sizes[1] < 20e6, [size // 1_000_000 for size in sizes]


class TestAccess:
    async def test_a_token_lets_in_and_its_lack_does_not(self, stage: Any) -> None:
        async with stage(token=TOKEN) as running:
            for wrong in (None, "the-very-secret-tokem", ""):
                with pytest.raises(Refused) as refused:
                    async with connect(running.url, token=wrong):
                        pass
                assert refused.value.code == "unauthorized"
            async with connect(running.url, token=TOKEN) as client:
                await watch(client, 1)

    async def test_pages_of_other_origins_are_kept_out(self, stage: Any) -> None:
        async with stage(allowed_origins=("https://friend.example",)) as running:
            own = running.server.url.rstrip("/")
            for origin in (own, "https://friend.example"):
                async with raw(running.url, Hello(), origin=origin) as socket:
                    assert await socket.recv()
            for origin in ("https://evil.example", "null"):
                with pytest.raises(InvalidStatus, match="403"):
                    async with raw(running.url, origin=origin):
                        pass

    async def test_tls(self, stage: Any, certificate: tuple[SSLContext, SSLContext]) -> None:
        server_side, client_side = certificate
        async with stage(ssl=server_side) as running:
            assert running.url.startswith("wss://")
            assert running.server.url.startswith("https://")
            async with connect(running.url, ssl=client_side) as client:
                await watch(client, 2)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[SSLContext, SSLContext]:
    """Give contexts of a server and a client that trusts its certificate."""
    import ssl

    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
        *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(cert)),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    server_side = create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(cert, key)
    return server_side, create_default_context(cafile=str(cert))


class TestLogs:
    """Case 40: nothing that a client sent is logged, and no secret is said."""

    async def test_nothing_of_a_client_is_in_logs_or_answers(
        self, stage: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        marked = [
            json.dumps({"type": "say_text", "text": MARK * 100}),
            json.dumps({"type": "say_text", "text": "a", "language": MARK}),
            json.dumps({"type": MARK}),
            json.dumps({"type": "hello", "token": MARK + TOKEN}),
            json.dumps({"type": "audio_start", "codec": MARK}),
            MARK,
            MARK.encode(),
            b"\x10\x11\x00\x08\x00\x00\x00\x00" + MARK.encode(),
        ]
        answers = ""
        with structlog.testing.capture_logs() as events:
            async with stage(token=TOKEN) as running:
                for hello in (Hello(token=TOKEN), Hello(token=MARK), None):
                    async with raw(running.url, hello, user_agent_header=MARK) as socket:
                        with suppress(ConnectionClosed):
                            for message in marked:
                                await socket.send(message)
                            async with asyncio.timeout(2.0):
                                async for message in socket:
                                    answers += message if isinstance(message, str) else ""
                                    if answers.count('"error"') >= 5:
                                        break
                with suppress(InvalidStatus):
                    url = f"{running.url}?token={MARK}"
                    async with raw(url, origin=f"https://{MARK}.example"):
                        pass
                with suppress(Exception):
                    async with raw(running.url.replace("/ws", f"/{MARK}")):
                        pass
                assert TOKEN not in repr(running.server.__dict__)
                assert TOKEN not in running.server.url + running.server.socket_url
        # All loggers but that of the client that this test sends with.
        records = [r for r in caplog.records if not r.name.startswith("websockets.client")]
        logged = "\n".join(caplog.handler.format(record) for record in records)
        said = logged + "".join(capfd.readouterr()) + json.dumps(events, default=str) + answers
        assert '"error"' in said
        assert any(event["event"] == "websocket_viewer_left" for event in events)
        assert MARK not in said
        assert TOKEN not in said

    async def test_errors_hold_no_secret(self, stage: Any) -> None:
        async with stage(token=TOKEN) as running:
            with pytest.raises(Refused) as refused:
                async with connect(running.url, token=TOKEN + MARK):
                    pass
            assert MARK not in str(refused.value)
            assert TOKEN not in str(refused.value)


async def test_http(stage: Any, tmp_path: Path) -> None:
    async with stage() as running:
        host, port = running.url.removeprefix("ws://").removesuffix("/ws").split(":")

        async def get(path: str) -> str:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            async with asyncio.timeout(WAIT_S):
                answer = (await reader.read()).decode("utf-8", "replace")
            writer.close()
            return answer

        health = await get("/healthz?verbose=1")
        assert health.startswith("HTTP/1.1 200")
        assert health.endswith("ok\n")
        assert "nosniff" in health
        for path in ("/../pyproject.toml", "/%2e%2e/x", "/static", "/..", "//etc/passwd", "/nope"):
            assert (await get(path)).startswith("HTTP/1.1 404"), path
        assert (await get("/ws")).startswith("HTTP/1.1 426")


async def test_an_error_comes_before_the_close(stage: Any) -> None:
    async with stage() as running, raw(running.url) as socket:
        await socket.send("nonsense")
        answer = await socket.recv()
        assert isinstance(answer, str)
        assert ErrorMessage.model_validate_json(answer).is_fatal
        assert await ended(socket) == 4400
