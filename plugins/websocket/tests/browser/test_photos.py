"""Photos on the page: one that becomes the character, some that cannot, one of several faces."""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress

import pytest
from PIL import Image

from talking_avatar_websocket import serve

pytestmark = pytest.mark.browser


@pytest.fixture
async def portrait(bundled_portrait):
    """Serve the bundled portrait with the engine that needs no GPU."""
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(str(bundled_portrait), port=0, on_ready=ready.set_result))
    await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    yield ready.result().url
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


def file(image, name="photo.jpg", kind="JPEG"):
    data = io.BytesIO()
    image.save(data, kind)
    return {"name": name, "mimeType": "image/jpeg", "buffer": data.getvalue()}


async def test_photos(visit, portrait, bundled_portrait):
    page = await visit(portrait)
    await page.is_open()
    first = await page.avatar("avatar.stream.stream")

    async def offer(photo):
        await page.page.set_input_files("#file", photo)
        await page.until(
            "['accepted', 'rejected', 'choose']"
            ".includes(document.querySelector('#drop').dataset.result)"
        )
        return await page.page.inner_text("#photo-note")

    assert "No face was found" in await offer(file(Image.new("RGB", (640, 640), "gray")))
    broken = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"this is a text" * 9}
    assert "could not be read" in await offer(broken)
    assert await page.avatar("avatar.stream.stream") == first  # the character stayed

    with Image.open(bundled_portrait) as one:
        pair = Image.new("RGB", (2 * one.width, one.height))
        pair.paste(one, (0, 0))
        pair.paste(one, (one.width, 0))
    assert "Choose one" in await offer(file(pair))
    assert await page.page.locator(".face").count() == 2
    await page.page.click(".face >> nth=1")
    await page.until("document.querySelector('#drop').dataset.result === 'accepted'", timeout_s=40)
    await page.until("document.querySelector('#cover').hidden")
    assert await page.avatar("avatar.stream.stream") > first
    frames = await page.frames(2.0)
    assert len(frames) > 12

    picture = await page.evaluate(
        """async () => {
            const canvas = document.querySelector('#picture');
            const context = canvas.getContext('2d');
            const size = [0, 0, canvas.width, canvas.height];
            const before = context.getImageData(...size).data;
            await new Promise((go) => setTimeout(go, 700));
            const after = context.getImageData(...size).data;
            let changed = 0;
            for (let i = 1; i < before.length; i += 4)
                changed += Math.abs(before[i] - after[i]) > 8;
            const mean = after.reduce((a, b) => a + b) / after.length;
            return { changed, size: size.slice(2), mean };
        }"""
    )
    assert picture["size"] == [704, 1088]
    assert picture["changed"] > 200  # it moves
    assert 40 < picture["mean"] < 240  # and is neither black nor white
