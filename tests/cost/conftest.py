"""Sessions on fake GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from talking_avatar.engine.base import Device
from talking_avatar.session import AvatarSession
from talking_avatar.testing import FakeEngine, RecordingTransport

THREE_GPUS = (
    Device("cuda:0", "H200", "denoise"),
    Device("cuda:1", "H200", "denoise"),
    Device("cuda:2", "L40S", "decode"),
)


def fake_engine(devices: tuple[Device, ...] = THREE_GPUS, **options: Any) -> FakeEngine:
    given: dict[str, Any] = {"step_s": 0.1, "decode_s": 0.05, "frames_per_chunk": 4}
    return FakeEngine(pipeline_depth=2, devices=devices, **{**given, **options})


def session_on(engine: FakeEngine, **options: Any) -> AvatarSession:
    return AvatarSession("any", engine=engine, transport=RecordingTransport(), **options)


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()
