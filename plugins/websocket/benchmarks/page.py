"""Measure the page in a real Chromium, with the bundled portrait and one viewer on loopback.

    python plugins/websocket/benchmarks/page.py [--seconds 60] [--photo face.jpg]

Prints frames shown a second, time from the session to the screen, sound against lips, time from a
click on interrupt to silence, and what the server cost. Two are measured without the page's own
word for them: silence is what ears on the loudspeaker's input hear; and a second pass shows light
where there is sound, and compares when the canvas lights up with when it gets loud.

The machine's load is printed beside: on a busy one these numbers are the load's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import talking_avatar
from talking_avatar import AvatarSession, Frame
from talking_avatar.testing import FakeEngine
from talking_avatar_websocket import AvatarServer, WebsocketTransport, serve

PORTRAIT = Path(talking_avatar.__file__).parent / "assets" / "portrait.jpg"
IN_PAGE = Path(__file__).with_suffix(".js").read_text()
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TEXT = "This is a long sentence, with enough of it left to be interrupted somewhere in the middle."
NUM_INTERRUPTS = 20
SETTLE_S = 12.0
"""The page looks for the least delay over windows of 8 s."""
RATE = 24_000


class Lit(WebsocketTransport):
    """Shows light in each frame whose samples are loud."""

    async def send(self, frame: Frame) -> None:
        image = np.full_like(frame.image, 128)
        is_loud = int(np.abs(frame.audio).max()) > 600
        image[: image.shape[0] * 2 // 3] = 210 if is_loud else 40
        await super().send(replace(frame, image=image))


@asynccontextmanager
async def opened_page(playwright: Any, url: str) -> AsyncIterator[Any]:
    """Open the page with its sound on, and give it time to settle."""
    chromium = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if chromium is None:
        sys.exit("no Chromium on this machine: on Debian, apt-get install chromium")
    browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
    # The ears are no file of the server's: its policy would not let them in.
    page = await browser.new_page(viewport={"width": 1280, "height": 800}, bypass_csp=True)
    await page.add_init_script(IN_PAGE)
    await page.goto(url)
    await page.wait_for_selector("#cover", state="hidden")
    if await page.get_attribute("#sound", "aria-pressed") == "false":
        await page.click("#sound")
    await asyncio.sleep(SETTLE_S)
    yield page
    await browser.close()


def quantiles(values: list[float]) -> str:
    """Say how values are spread."""
    p5, p50, p95 = np.percentile(values, [5, 50, 95])
    most = max(values, key=abs)
    return f"p5 {p5:6.1f}  p50 {p50:6.1f}  p95 {p95:6.1f}  most {most:6.1f} ms  (n = {len(values)})"


async def measure_portrait(playwright: Any, photo: str, seconds: float) -> None:
    """Frames, latency, sound against lips, cost and interruptions of the character itself."""
    ready: asyncio.Future[AvatarServer] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(photo, port=0, on_ready=ready.set_result))
    await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    async with opened_page(playwright, ready.result().url) as page:
        cpu_s, start_s = time.process_time(), time.perf_counter()
        shown = await page.evaluate("(seconds) => window.watch(seconds)", seconds)
        cores = (time.process_time() - cpu_s) / (time.perf_counter() - start_s)
        fps = (len(shown) - 1) / ((shown[-1][2] - shown[0][2]) / 1000)
        print(f"shown               {fps:.2f} fps over {seconds:.0f} s")
        print(f"session to screen   {quantiles([latency for latency, _, _ in shown])}")
        print(f"sound - lips, own   {quantiles([skew for _, skew, _ in shown])}")
        print(f"server              {100 * cores:.0f} % of a core, engine and encoder included")
        await measure_interrupts(page)
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def measure_interrupts(page: Any) -> None:
    """Click while it speaks, at random moments."""
    own: list[float] = []
    heard: list[float] = []
    random = np.random.default_rng(1)
    for _ in range(NUM_INTERRUPTS):
        await page.fill("#say-text", TEXT)
        await page.keyboard.press("Enter")
        await page.wait_for_function("window.edges.at(-1)?.isLoud", timeout=10_000)
        await asyncio.sleep(random.uniform(0.3, 1.2))
        result = await page.evaluate("() => window.interrupt()")
        own.append(result["ownMs"])
        if result["heardMs"] is not None:
            heard.append(result["heardMs"])
        await asyncio.sleep(0.5)
    print(f"silence, own        {quantiles(own)}")
    if heard:
        print(f"silence, heard      {quantiles(heard)}")


async def measure_flashes(playwright: Any, seconds: float) -> None:
    """Sound against lips, measured from outside: when it gets loud and when it lights up."""
    async with AvatarServer(port=0) as server:
        engine = FakeEngine(width=704, height=1088)
        session = AvatarSession("any", engine=engine, transport=Lit(server), pixel_format="i420")
        async with session, opened_page(playwright, server.url) as page:
            time_s = np.arange(RATE // 2) / RATE
            beep = 12_000 * np.sin(2 * np.pi * 440 * time_s) * (time_s < 0.25)
            beeps = np.tile(beep.astype(np.int16), int(2 * seconds) + 2)
            saying = asyncio.create_task(session.say(beeps, sample_rate=RATE))
            seen = await page.evaluate("(seconds) => window.flashes(seconds)", seconds)
            saying.cancel()
            with suppress(asyncio.CancelledError):
                await saying
    times = np.array(seen["beeps"])
    apart = [float(times[np.abs(times - flash).argmin()] - flash) for flash in seen["flashes"]]
    print(f"sound - light       {quantiles([value for value in apart if abs(value) < 250])}")


async def main() -> None:
    """Measure and print."""
    from playwright.async_api import async_playwright

    parser = argparse.ArgumentParser(description="Measure the page in a real Chromium.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--photo", default=str(PORTRAIT))
    parser.add_argument("--only", choices=["portrait", "flashes"])
    given = parser.parse_args()
    print(f"load                {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, before")
    async with async_playwright() as playwright:
        if given.only != "flashes":
            await measure_portrait(playwright, given.photo, given.seconds)
        if given.only != "portrait":
            await measure_flashes(playwright, min(20.0, given.seconds))
    print(f"load                {os.getloadavg()[0]:.1f}, after")


if __name__ == "__main__":
    asyncio.run(main())
