"""Measure what LiveKit's own browser client shows: frames a second, and sound against light.

    npm install livekit-client
    python plugins/livekit/benchmarks/browser.py \
        --client node_modules/livekit-client/dist/livekit-client.umd.js [--seconds 60]

The picture is bright in every frame whose own samples are loud, and speech is a beep every half
second: what is measured is when the picture lights up in a headless Chromium, and when the sound
gets loud on its way to the loudspeaker. The engine costs nothing, so that the way is measured and
not the engine; ``--portrait`` has the portrait engine render behind the light.

The server is the test double, in a process of its own: it decodes and encodes everything once more,
which a real one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from livekit.agents import Agent, AgentSession

from livekit import rtc
from livekit.plugins import talking_avatar
from livekit.plugins.talking_avatar import _character
from livekit.plugins.talking_avatar._tracks import RoomTransport
from livekit.plugins.talking_avatar.testing import ScriptedLLM, ScriptedSTT, ToneTTS
from livekit.plugins.talking_avatar.testing.room_server import RoomServer
from talking_avatar import Frame
from talking_avatar.assets import portrait_path
from talking_avatar.testing import FakeEngine

IN_PAGE = Path(__file__).with_suffix(".js").read_text()
EXAMPLE = Path(__file__).parents[3] / "examples" / "livekit_agent"
ROOM = "offline"
RATE = 24_000
BEEP_S, PERIOD_S = 0.25, 0.5
SETTLE_S = 8.0
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
]


class Lit(RoomTransport):
    """Shows light in each frame whose samples are loud, on a picture that moves."""

    async def send(self, frame: Frame) -> None:
        image = frame.image.copy()
        rows = image.shape[0] * 2 // 3
        is_loud = int(np.abs(frame.audio).max()) > 600
        image[:rows] = image[:rows] // 8 + (200 if is_loud else 30)
        await super().send(replace(frame, image=image))


async def beeps() -> AsyncIterator[rtc.AudioFrame]:
    """Give them for as long as somebody takes them."""
    time_s = np.arange(round(PERIOD_S * RATE)) / RATE
    beep = 12_000 * np.sin(2 * np.pi * 440 * time_s) * (time_s < BEEP_S)
    sound = beep.astype(np.int16).tobytes()
    while True:
        yield rtc.AudioFrame(sound, RATE, 1, len(sound) // 2)


async def act(url: str, token: str, with_portrait: bool) -> None:
    """Be an agent with an avatar that beeps."""
    _character.RoomTransport = Lit  # type: ignore[misc]
    engine: Any = FakeEngine(width=704, height=1088)
    if with_portrait:
        engine = talking_avatar.PortraitConfig(width=704, height=1088)
    room = rtc.Room()
    await room.connect(url, token)
    session: AgentSession[None] = AgentSession(
        stt=ScriptedSTT(), llm=ScriptedLLM(["Beep."]), tts=ToneTTS(), vad=None
    )
    avatar = talking_avatar.AvatarSession(photo=portrait_path(), engine=engine)
    await avatar.start(session, room)
    await session.start(agent=Agent(instructions="beep"), room=room)
    await session.say("beep", audio=beeps())


def agent(url: str, token: str, with_portrait: bool) -> None:
    """Run it in a process of its own."""
    asyncio.run(act(url, token, with_portrait))


async def look(url: str, seconds: float, picture: Path | None) -> dict[str, Any]:
    """Open the example's page and measure."""
    from playwright.async_api import async_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium on this machine: on Debian, apt-get install chromium")
    async with async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=chromium, args=FLAGS)
        page = await browser.new_page(viewport={"width": 720, "height": 1000})
        await page.goto(url)
        await page.wait_for_function("window.seen && seen.frames > 24", timeout=60_000)
        await page.add_script_tag(content=IN_PAGE)
        await asyncio.sleep(SETTLE_S)
        seen: dict[str, Any] = await page.evaluate("(seconds) => measure(seconds)", seconds)
        if picture is not None:
            await page.screenshot(path=picture)
        await browser.close()
    return seen


def report(seen: dict[str, Any]) -> None:
    """Print what was seen and heard."""
    shown = np.array(seen["shown"])
    took_s = (shown[-1, 0] - shown[0, 0]) / 1e3
    print(f"shown          {(shown[-1, 1] - shown[0, 1]) / took_s:.2f} fps over {took_s:.0f} s")
    before, after = seen["before"], seen["after"]
    decoded = after["video"]["framesDecoded"] - before["video"]["framesDecoded"]
    size = f"{after['video']['frameWidth']}x{after['video']['frameHeight']}"
    print(f"decoded        {decoded / took_s:.2f} fps, {size}")
    for kind in ("audio", "video"):
        delay_s, num_emitted = (
            after[kind][name] - before[kind][name]
            for name in ("jitterBufferDelay", "jitterBufferEmittedCount")
        )
        print(f"{kind} waits    {1e3 * delay_s / num_emitted:.0f} ms in the client's jitter buffer")
    beeps_ms = np.array(seen["beeps"])
    apart = [float(beeps_ms[np.abs(beeps_ms - at).argmin()] - at) for at in seen["flashes"]]
    p5, p50, p95 = np.percentile(apart, [5, 50, 95])
    near = sum(abs(each) <= 60 for each in apart)
    print(
        f"sound - light  p5 {p5:.0f}  p50 {p50:.0f}  p95 {p95:.0f} ms (n = {len(apart)}),", end=""
    )
    print(f" {near} within 60 ms; positive: the sound is later")
    print(f"of that        {seen['outputMs']:.0f} ms are the loudspeaker's, says the browser")
    own = [each for each in seen["own"] if each is not None and np.isfinite(each)]
    if own:
        print(f"own estimate   p50 {-np.median(own):.0f} ms (n = {len(own)})")


async def measure(given: argparse.Namespace) -> None:
    """Serve, have an agent act, look at it."""
    sys.path.insert(0, str(EXAMPLE))
    import offline

    async with RoomServer() as server:
        runner = web.AppRunner(offline.page(server, given.client), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        token = server.token("agent", room=ROOM, is_agent=True)
        process = multiprocessing.get_context("spawn").Process(
            target=agent, args=(server.url, token, given.portrait), daemon=True
        )
        process.start()
        try:
            page = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            report(await look(page, given.seconds, given.picture))
        finally:
            process.terminate()
            await runner.cleanup()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Measure LiveKit's own browser client.")
    parser.add_argument("--client", type=Path, required=True, help="livekit-client.umd.js")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--portrait", action="store_true", help="render with the portrait engine")
    parser.add_argument("--picture", type=Path, help="where to write what the page looks like")
    given = parser.parse_args()
    print(f"load           {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, before")
    asyncio.run(measure(given))
    print(f"load           {os.getloadavg()[0]:.1f}, after")


if __name__ == "__main__":
    main()
