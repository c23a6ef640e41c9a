"""A real Chromium, and a character whose picture tells what its sound does.

`Stage` serves the page with an engine that costs nothing; its picture is bright in every frame
whose own samples are loud, so that a page can be asked whether lips and sound are together.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from talking_avatar import AvatarSession, Frame
from talking_avatar.testing import FakeEngine
from talking_avatar_websocket import (
    AvatarServer,
    Conversation,
    Features,
    Limits,
    Offering,
    Scene,
    WebsocketTransport,
)

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

RATE = 24_000
WIDTH, HEIGHT = 176, 272
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # As on a user's machine; headless would let pages sound without a click.
    "--autoplay-policy=document-user-activation-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]

LISTEN = """
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) {
    window.tap = this.context.createAnalyser();
    window.tap.fftSize = 1024;
    connect.call(this, window.tap);
  }
  return connect.call(this, to, ...rest);
};
window.loudness = () => {
  if (!window.tap) return 0;
  const samples = new Float32Array(window.tap.fftSize);
  window.tap.getFloatTimeDomainData(samples);
  return Math.sqrt(samples.reduce((sum, value) => sum + value * value, 0) / samples.length);
};
"""
"""Hears what the page plays, whatever its own code says."""


class Lit(WebsocketTransport):
    """Shows light where there is sound, on a background that moves."""

    async def send(self, frame: Frame) -> None:
        image = np.full_like(frame.image, 128)
        is_loud = int(np.abs(frame.audio).max()) > 1_000
        image[:HEIGHT] = 210 if is_loud else 40
        image[:HEIGHT:16, frame.index * 4 % WIDTH] = 120
        await super().send(replace(frame, image=image))


class Beeps:
    """A voice: as many beeps as the text has words; 250 ms of sound, 250 ms of none."""

    sample_rate = RATE

    async def speak(self, text: str, language: str | None) -> AsyncIterator[bytes]:
        for _ in text.split():
            yield beep(0.25).tobytes() + bytes(RATE // 2)


def beep(seconds: float) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Give a sine of 440 Hz."""
    time = np.arange(int(seconds * RATE)) / RATE
    return (12_000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16)


@dataclass
class Stage:
    """A character, served; can be stopped and started on the same port."""

    token: str | None = None
    limits: Limits | None = None
    port: int = 0

    async def start(self) -> None:
        features = Features(say_text=True, photo=False, audio_input=["pcm", "opus"])
        self.server = AvatarServer(
            port=self.port,
            token=self.token,
            limits=self.limits,
            offering=Offering(features=features),
        )
        await self.server.start()
        self.port = urlsplit(self.server.url).port or 0
        transport = Lit(self.server)
        self.engine = FakeEngine(width=WIDTH, height=HEIGHT)
        self.session = AvatarSession(
            "any", engine=self.engine, transport=transport, pixel_format="i420"
        )
        await self.session.start()
        conversation = Conversation(self.server, Scene(self.session, transport), voice=Beeps())
        self._running = asyncio.create_task(conversation.run())

    async def stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        await self.session.aclose()
        await self.server.aclose()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def speech(self) -> list[float]:
        """Mean squares of the windows that the engine got last."""
        return [float(np.mean(np.square(w.samples))) for w in self.engine.streams[-1].windows]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    await stage.start()
    yield stage
    await stage.stop()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Give the path of a Chromium; skip without one."""
    pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    for name in (os.environ.get("TALKING_AVATAR_CHROMIUM", ""), *CHROMIUM_NAMES):
        if name and (path := shutil.which(name)):
            return path
    pytest.skip("no Chromium on this machine")


@pytest.fixture
async def browser(chromium: str, request: pytest.FixtureRequest) -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    flags = [*CHROMIUM_FLAGS, *getattr(request, "param", ())]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        await browser.close()


@dataclass
class Visit:
    """A page, and what went wrong in it."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    async def evaluate(self, expression: str, argument: object = None) -> Any:
        return await self.page.evaluate(expression, argument)

    async def avatar(self, expression: str) -> Any:
        """Evaluate with the page's own ``avatar``."""
        return await self.page.evaluate(
            f"async () => {{ const {{ avatar }} = await import('/app.js'); return {expression}; }}"
        )

    async def until(self, expression: str, *, timeout_s: float = 20.0) -> None:
        # Playwright's own way evaluates text within the page, which the page's policy forbids.
        end = asyncio.get_running_loop().time() + timeout_s
        while not await self.page.evaluate(f"() => Boolean({expression})"):
            assert asyncio.get_running_loop().time() < end, f"never came true: {expression}"
            await asyncio.sleep(0.03)

    async def is_open(self) -> None:
        """Wait for the character to be there."""
        await self.until("document.querySelector('#cover').hidden")

    async def frames(self, seconds: float) -> list[dict[str, float]]:
        """Give what was shown in the next seconds."""
        return await self.page.evaluate(
            """async (seconds) => {
                const { avatar } = await import('/app.js');
                const shown = [];
                const note = (event) => shown.push(event.detail);
                avatar.addEventListener('shown', note);
                await new Promise((go) => setTimeout(go, seconds * 1000));
                avatar.removeEventListener('shown', note);
                return shown;
            }""",
            seconds,
        )

    async def light(self) -> int:
        """Give the brightness of the middle of the picture."""
        return await self.evaluate(
            """() => {
                const canvas = document.querySelector('#picture');
                const at = [canvas.width / 2 + 3, canvas.height / 2 + 3, 1, 1];
                return canvas.getContext('2d').getImageData(...at).data[1];
            }"""
        )


Visits = Callable[..., Awaitable[Visit]]


@pytest.fixture
async def visit(browser: Browser, stage: Stage) -> AsyncIterator[Visits]:
    """Open the stage's page; at the end, nothing must have gone wrong in any."""
    visits: list[Visit] = []

    async def open_page(
        url: str | None = None, *, script: str = "", context: BrowserContext | None = None
    ) -> Visit:
        context = context or await browser.new_context()
        page = await context.new_page()
        await page.add_init_script(LISTEN + script)
        opened = watched(page)
        visits.append(opened)
        await page.goto(url or stage.url)
        return opened

    yield open_page
    for opened in visits:
        assert opened.troubles == []
        assert opened.hosts <= {"127.0.0.1", ""}


def watched(page: Page) -> Visit:
    """Note errors in the console, exceptions, and hosts that were asked for anything."""
    visit = Visit(page)
    page.on(
        "console",
        lambda message: message.type == "error" and visit.troubles.append(message.text),
    )
    page.on("pageerror", lambda error: visit.troubles.append(str(error)))
    page.on("request", lambda asked: visit.hosts.add(urlsplit(asked.url).hostname or ""))
    return visit


@pytest.fixture(scope="session")
def bundled_portrait() -> Path:
    import talking_avatar

    return Path(talking_avatar.__file__).parent / "assets" / "portrait.jpg"
