"""A LiveKit agent with a face on this machine alone: no LiveKit server, no account.

    python examples/livekit_agent/offline.py           # then open http://127.0.0.1:8090/

It speaks every few seconds; the page shows it with LiveKit's own browser client. The server is the
test double of `livekit.plugins.talking_avatar.testing`. espeak-ng speaks where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web
from livekit.agents import Agent, AgentSession, tts, utils
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions

from livekit import rtc
from livekit.plugins import talking_avatar
from livekit.plugins.talking_avatar.testing import ScriptedLLM, ScriptedSTT, ToneTTS
from livekit.plugins.talking_avatar.testing.room_server import RoomServer
from talking_avatar.assets import portrait_path

HERE = Path(__file__).parent
ROOM = "offline"
CLIENT = "https://cdn.jsdelivr.net/npm/livekit-client@2/dist/livekit-client.umd.js"
REPLIES = (
    "Good morning. I am a photograph, and this is LiveKit's own client that shows me.",
    "Everything you see and hear was made on this machine, by one core of its processor.",
)


class Espeak(tts.TTS):
    """Speaks with espeak-ng, which gives 22,050 Hz."""

    def __init__(self) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=False), sample_rate=22_050, num_channels=1
        )

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return EspeakStream(tts=self, input_text=text, conn_options=conn_options)


class EspeakStream(tts.ChunkedStream):
    """One text."""

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        process = await asyncio.create_subprocess_exec(
            "espeak-ng", "--stdout", self.input_text, stdout=asyncio.subprocess.PIPE
        )
        sound, _ = await process.communicate()
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=self._tts.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
        )
        output_emitter.push(sound[44:])  # after the header of a wav
        output_emitter.flush()


def page(server: RoomServer, client: Path | None) -> web.Application:
    """Serve the page, and a token for whoever opens it."""
    visitors = iter(range(1_000_000))

    async def index(request: web.Request) -> web.FileResponse:
        return web.FileResponse(HERE / "page.html")

    async def pass_(request: web.Request) -> web.Response:
        token = server.token(f"visitor-{next(visitors)}", room=ROOM)
        return web.json_response({"url": server.url, "token": token})

    async def script(request: web.Request) -> web.StreamResponse:
        if client is None:
            raise web.HTTPFound(CLIENT)
        return web.FileResponse(client)

    app = web.Application()
    app.router.add_get("/", index)
    app.router.add_get("/pass", pass_)
    app.router.add_get("/livekit-client.js", script)
    return app


async def talk(session: AgentSession[None], times: int | None) -> None:
    """Say something every two seconds."""
    num_said = 0
    while times is None or num_said < times:
        await session.generate_reply(user_input="Go on.")
        await asyncio.sleep(2)
        num_said += 1


async def show(
    avatar: talking_avatar.AvatarSession, *, port: int, client: Path | None, times: int | None
) -> None:
    """Run server, agent, avatar and page until it has spoken ``times`` times."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RoomServer())
        room = rtc.Room()
        await room.connect(server.url, server.token("agent", room=ROOM, is_agent=True))
        stack.push_async_callback(room.disconnect)
        voice = Espeak() if shutil.which("espeak-ng") else ToneTTS()
        session: AgentSession[None] = AgentSession(
            stt=ScriptedSTT(), llm=ScriptedLLM(REPLIES), tts=voice, vad=None
        )
        stack.push_async_callback(session.aclose)
        stack.push_async_callback(avatar.aclose)
        await avatar.start(session, room)
        await session.start(agent=Agent(instructions="Be brief."), room=room)
        runner = web.AppRunner(page(server, client), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print(f"open http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await talk(session, times)
        stats, usage = avatar.stats(), avatar.usage()
    print(f"{stats.num_frames} frames, {stats.num_stalls} stalls, {usage.gpu_hours:.4f} GPU-hours")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="A LiveKit agent with a face, offline.")
    parser.add_argument("--photo", type=Path, default=portrait_path())
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--times", type=int, help="speak so often, then end")
    parser.add_argument("--client", type=Path, help="livekit-client.umd.js, where there is no net")
    parser.add_argument("--width", type=int, default=704)
    parser.add_argument("--height", type=int, default=1088)
    given = parser.parse_args()
    engine = talking_avatar.PortraitConfig(width=given.width, height=given.height)
    avatar = talking_avatar.AvatarSession(photo=given.photo, engine=engine)
    asyncio.run(show(avatar, port=given.port, client=given.client, times=given.times))


if __name__ == "__main__":
    main()
