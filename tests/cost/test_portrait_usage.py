"""The default engine tells its own CPU time."""

from __future__ import annotations

import time
from decimal import Decimal

import numpy as np

from talking_avatar.assets import portrait_path
from talking_avatar.config import PortraitConfig
from talking_avatar.cost import RateCard
from talking_avatar.session import AvatarSession
from talking_avatar.testing import RecordingTransport


async def test_core_hours_are_the_cpu_time_of_the_engines_thread() -> None:
    session = AvatarSession(
        portrait_path(),
        engine=PortraitConfig(width=128, height=192),
        transport=RecordingTransport(),
        clock="unpaced",
        rates=RateCard.of({"cpu": "0.05"}),
    )
    begin = time.process_time()
    async with session:
        result = await session.say(np.full(24_000, 2_000, np.int16), sample_rate=24_000)
    used_s = time.process_time() - begin
    usage = session.usage()
    assert (usage.gpu_hours, usage.energy_wh) == (0.0, None)
    assert 0 < usage.core_hours * 3600 < used_s
    assert usage.price is not None
    assert 0 < usage.price < Decimal("0.05") * Decimal(used_s) / 3600
    assert result.usage is not None
    assert 0 < result.usage.core_hours <= usage.core_hours
