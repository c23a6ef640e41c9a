"""What sessions say they used: turns, warm-up, shared engines, prices."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import numpy as np
import pytest
from tests.cost.conftest import fake_engine, session_on

from talking_avatar.cost import RateCard
from talking_avatar.engine.base import Device
from talking_avatar.testing import FakeEngine, in_virtual_time

RATE = 24_000
CARD = RateCard.of({"H200": "3.60", "L40S": "0.90"})


def speech(seconds: float) -> np.ndarray:
    return np.full(int(seconds * RATE), 1_000, np.int16)


@in_virtual_time
async def test_turns_are_charged_once_each_and_never_more_than_the_session() -> None:
    async with session_on(fake_engine(), rates=CARD) as session:
        await session.idle(30)
        first, second = await asyncio.gather(
            session.say(speech(10), sample_rate=RATE), session.say(speech(20), sample_rate=RATE)
        )
        await session.idle(30)
        usage = session.usage()
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.wall_s == pytest.approx(10, abs=0.6)
    assert second.usage.wall_s == pytest.approx(20, abs=0.6)
    assert first.usage.speaking_s == pytest.approx(10, abs=0.05)
    assert first.usage.gpu_hours == pytest.approx(3 * first.usage.wall_s / 3600)
    assert first.usage.price is not None
    assert second.usage.price is not None
    hour = Decimal("8.10")
    assert float(first.usage.price) == pytest.approx(float(hour) * first.usage.wall_s / 3600)
    assert usage.speaking_s == 30.0
    assert usage.price is not None
    assert first.usage.price + second.usage.price < usage.price
    speaking, wall = usage.per_speaking_minute, usage.per_wall_minute
    assert speaking is not None
    assert wall is not None
    assert wall.gpu_hours == pytest.approx(3 / 60)
    assert speaking.gpu_hours == pytest.approx(3 / 60 * usage.wall_s / 30)


@in_virtual_time
async def test_warming_up_is_counted_and_shown_apart() -> None:
    async with session_on(fake_engine(step_s=0.4)) as session:
        await session.idle(10)
        usage = session.usage()
    assert usage.warm_up_s == pytest.approx(0.85, abs=0.1)  # two steps and a decoding
    assert usage.warm_up_gpu_hours == pytest.approx(3 * usage.warm_up_s / 3600)
    assert usage.gpu_hours == pytest.approx(3 * usage.wall_s / 3600)


@in_virtual_time
async def test_sessions_that_share_an_engine_share_its_gpus() -> None:
    engine = fake_engine((Device("cuda:0", "H200", "denoise"),), decode_s=0.0)
    async with session_on(engine) as first:
        await first.idle(100)
        async with session_on(engine) as second:
            await second.idle(200)
        await first.idle(60)
    held = [session.usage().devices[0].held_s for session in (first, second)]
    assert sum(held) == pytest.approx(first.usage().wall_s, abs=1e-6)
    assert held[1] == pytest.approx(100, abs=0.5)
    assert held[1] == pytest.approx(second.usage().wall_s / 2, abs=1e-6)


@in_virtual_time
async def test_a_session_that_fails_to_start_holds_nothing_any_more() -> None:
    class Broken(FakeEngine):
        async def open_stream(self, avatar, *, seed=0):
            await asyncio.sleep(5)
            raise RuntimeError("no stream")

    session = session_on(Broken(devices=(Device("cuda:0", "H200", "denoise"),)))
    with pytest.raises(RuntimeError, match="no stream"):
        await session.start()
    held = session.usage().devices[0].held_s
    await asyncio.sleep(100)
    assert session.usage().devices[0].held_s == held == 5.0
    assert session.usage().warm_up_s == 5.0
