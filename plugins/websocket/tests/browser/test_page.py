"""The page in a real Chromium: picture, speech, interruptions, roles, and what can go wrong."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from talking_avatar_websocket import Limits

pytestmark = pytest.mark.browser


async def eventually(check, timeout_s=15.0):
    for _ in range(int(timeout_s / 0.05)):
        if check():
            return
        await asyncio.sleep(0.05)
    assert check()


async def heard(visit):
    """Turn the sound on, as people do."""
    await visit.page.click("#unmute")
    await visit.until("window.tap")


async def test_picture_moves_before_sound_is_allowed(visit):
    page = await visit()
    await page.is_open()
    frames = await page.frames(2.0)
    assert len(frames) > 24
    steps = [round((b["ptsUs"] - a["ptsUs"]) * 24 / 1e6) for a, b in pairwise(frames)]
    assert min(steps) >= 1  # never back
    assert await page.avatar("avatar.isAudible") is False
    assert await page.page.is_visible("#unmute")
    await page.page.click("#unmute")
    await page.until("document.querySelector('#unmute').hidden")
    assert await page.avatar("avatar.isAudible") is True
    assert len(await page.frames(1.0)) > 12


async def test_text_is_seen_and_heard_together(visit):
    page = await visit()
    await page.is_open()
    await heard(page)
    await page.page.fill("#say-text", "one two three four five six")
    await page.page.keyboard.press("Enter")
    assert await page.page.input_value("#say-text") == ""
    await page.until("loudness() > 0.05")
    # Over half a second of beeps: whenever it is loud for long enough to be sure, it is bright.
    samples = await page.evaluate(
        """async () => {
            const canvas = document.querySelector('#picture');
            const context = canvas.getContext('2d');
            const samples = [];
            for (let i = 0; i < 120; i += 1) {
                await new Promise(requestAnimationFrame);
                const at = [canvas.width / 2 + 3, canvas.height / 2 + 3, 1, 1];
                const [, green] = context.getImageData(...at).data;
                samples.push([loudness() > 0.05, green > 120]);
            }
            return samples;
        }"""
    )
    assert any(loud for loud, _ in samples)
    assert any(not loud for loud, _ in samples)
    together = sum(loud == bright for loud, bright in samples) / len(samples)
    assert together > 0.6
    skews = [abs(frame["skewMs"]) for frame in await page.frames(1.0)]
    assert sorted(skews)[len(skews) // 2] < 100


async def test_interrupt_is_silent_at_once_and_says_what_was_heard(visit, stage):
    page = await visit()
    await page.is_open()
    await heard(page)
    await page.evaluate(
        """async () => {
            const { avatar } = await import('/app.js');
            window.got = [];
            for (const type of ['silent', 'interrupted', 'turn_finished'])
                avatar.addEventListener(type, ({ detail }) => window.got.push([type, detail]));
        }"""
    )
    await page.page.fill("#say-text", "a " * 40)
    await page.page.keyboard.press("Enter")
    await page.until("loudness() > 0.05")
    await asyncio.sleep(1.2)
    await page.page.click("#interrupt")
    await page.until("window.got.length >= 3")
    results = dict(await page.evaluate("() => got"))
    assert results["silent"]["afterMs"] < 1000
    assert results["interrupted"]["source"] == "acknowledged"
    assert 0.5 < results["interrupted"]["played_s"] < 15
    assert results["turn_finished"]["interrupted"] is True
    loudest = await page.evaluate(
        """async () => {
            let loudest = 0;
            for (let i = 0; i < 40; i += 1) {
                await new Promise(requestAnimationFrame);
                loudest = Math.max(loudest, loudness());
            }
            return loudest;
        }"""
    )
    assert loudest < 0.001
    await page.page.fill("#say-text", "again and again")  # and it can speak again
    await page.page.keyboard.press("Enter")
    await page.until("loudness() > 0.05")


async def test_microphone_is_spoken_by_the_character(visit, stage):
    page = await visit()
    await page.is_open()
    await page.page.click("#microphone")  # Chromium's own fake one, which beeps
    await page.until("document.querySelector('#microphone').ariaPressed === 'true'")
    await eventually(lambda: max(stage.speech) > 1e-4)
    await page.until("loudness() > 0.01")
    await page.page.click("#microphone")
    await page.until("document.querySelector('#microphone-label').textContent === 'Speak'")


async def test_reload_leaves_one_viewer(visit, stage):
    page = await visit()
    await page.is_open()
    for _ in range(3):
        await page.page.reload()
        await page.is_open()
    await eventually(lambda: stage.server.num_viewers == 1)
    assert await page.avatar("avatar.hasFloor") is True


async def test_two_pages_share_the_floor(visit, stage):
    first = await visit()
    await first.is_open()
    second = await visit()
    await second.is_open()
    assert await first.avatar("avatar.hasFloor") is True
    assert await second.avatar("avatar.hasFloor") is False
    assert "Somebody else speaks" in await second.page.inner_text("#role")
    assert await second.page.is_disabled("#interrupt")
    await second.page.click("#take-over")
    await second.until("!document.querySelector('#interrupt').disabled")
    await first.until("document.querySelector('#interrupt').disabled")
    assert "taken over" in await first.page.inner_text("#notice")
    # Both hear the one who speaks.
    await heard(first)
    await heard(second)
    await second.page.fill("#say-text", "one two three four five six")
    await second.page.keyboard.press("Enter")
    await asyncio.gather(first.until("loudness() > 0.05"), second.until("loudness() > 0.05"))


async def test_lost_connection_comes_back(visit, stage):
    page = await visit()
    await page.is_open()
    await stage.stop()
    await page.until("!document.querySelector('#cover').hidden")
    await page.until("document.querySelector('#status-text').textContent !== 'Connected'")
    await asyncio.sleep(1.0)
    await stage.start()
    await page.is_open()
    assert len(await page.frames(1.0)) > 12
    assert await page.avatar("avatar.hasFloor") is True
    # The browser itself reports connections that fail.
    page.troubles[:] = [text for text in page.troubles if "WebSocket connection" not in text]


async def test_slow_page_catches_up(visit):
    page = await visit()
    await page.is_open()
    client = await page.page.context.new_cdp_session(page.page)
    await client.send("Emulation.setCPUThrottlingRate", {"rate": 12})
    await asyncio.sleep(3.0)
    await client.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    await page.evaluate(
        "() => { const end = performance.now() + 1500; while (performance.now() < end); }"
    )
    await asyncio.sleep(3.0)
    frames = await page.frames(1.5)
    assert len(frames) > 18
    latencies = sorted(frame["latencyMs"] for frame in frames)
    assert latencies[len(latencies) // 2] < 1000


async def test_without_webcodecs_images_are_shown(visit):
    page = await visit(script="delete window.VideoDecoder; delete window.AudioDecoder;")
    await page.is_open()
    assert await page.avatar("avatar.stream.video_codec") == "jpeg"
    assert await page.avatar("avatar.stream.audio_codec") == "pcm"
    assert "WebCodecs" in await page.page.inner_text("#notice")
    assert len(await page.frames(2.0)) > 24
    await heard(page)
    await page.page.fill("#say-text", "one two three")
    await page.page.keyboard.press("Enter")
    await page.until("loudness() > 0.05")


async def test_token_is_asked_for_and_kept_out_of_the_address(visit, stage):
    await stage.stop()
    stage.token = "a-token-of-the-test"
    await stage.start()
    page = await visit()
    await page.until("!document.querySelector('#token-form').hidden")
    await page.page.fill("#token", "not this one")
    await page.page.click("#token-form button")
    await page.until("document.querySelector('#cover-title').textContent.includes('does not fit')")
    await page.page.fill("#token", stage.token)
    await page.page.click("#token-form button")
    await page.is_open()
    by_fragment = await visit(f"{stage.url}#token={stage.token}")
    await by_fragment.is_open()
    assert stage.token not in by_fragment.page.url
    await by_fragment.page.reload()
    await by_fragment.is_open()


async def test_module_needs_no_page(visit, stage):
    page = await visit(f"{stage.url.rstrip('/')}/icon.svg")
    seen = await page.evaluate(
        """async () => {
            const { TalkingAvatar } = await import('/talking-avatar.js');
            const html = 'http://www.w3.org/1999/xhtml';
            const canvas = document.createElementNS(html, 'canvas');
            const avatar = new TalkingAvatar({ canvas, url: `ws://${location.host}/ws` });
            const types = new Set();
            for (const type of ['welcome', 'stream', 'shown', 'second', 'stats'])
                avatar.addEventListener(type, () => types.add(type));
            avatar.connect();
            for (let i = 0; i < 200 && types.size < 5; i += 1)
                await new Promise((go) => setTimeout(go, 50));
            await avatar.close();
            return { types: [...types].sort(), size: [canvas.width, canvas.height] };
        }"""
    )
    assert seen["types"] == ["second", "shown", "stats", "stream", "welcome"]
    assert seen["size"] == [176, 272]
    page.troubles[:] = [text for text in page.troubles if "404" not in text]  # no favicon.ico


async def test_microphone_stops_where_the_server_stops_it(visit, stage):
    await stage.stop()
    stage.limits = Limits(max_input_s=11.5)
    await stage.start()
    page = await visit()
    await page.is_open()
    await page.page.click("#microphone")
    await page.until("document.querySelector('#microphone').ariaPressed === 'true'")
    await page.until("document.querySelector('#notice').innerText.includes('turned off in')")
    await page.until("document.querySelector('#microphone').ariaPressed === 'false'")


async def test_figures_are_words_too(visit):
    page = await visit()
    await page.is_open()
    await page.until("document.querySelector('#live').innerText.includes('no rate set')")
    text = await page.page.inner_text("#live")
    for name in ("fps", "delivery", "GPU-hours"):
        assert name in text


async def test_page_has_names_for_everything(visit):
    page = await visit()
    await page.is_open()
    nameless = await page.evaluate(
        """() => [...document.querySelectorAll('button, input, textarea, canvas, img, section')]
            .filter((e) => e.checkVisibility() && e.ariaHidden !== 'true')
            .filter((e) => !(e.ariaLabel || e.innerText?.trim() || e.labels?.length
                || e.getAttribute('aria-labelledby') || e.alt))
            .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    await page.page.keyboard.press("Tab")
    assert await page.evaluate("() => document.activeElement.className") == "skip"
