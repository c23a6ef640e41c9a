"""What tests of conversations need: a fake engine, a recording transport, virtual time.

    from talking_avatar.testing import FakeEngine, RecordingTransport, VirtualTimeLoop

Loads no engine and no test framework; `talking_avatar.testing.plugin` is the pytest plugin.
"""

from __future__ import annotations

from talking_avatar.testing.fake_engine import (
    FakeAvatar,
    FakeEngine,
    FakePicture,
    FakeStream,
    read_picture,
)
from talking_avatar.testing.recording_transport import RecordingTransport, SentFrame
from talking_avatar.testing.virtual_time import VirtualTimeLoop

__all__ = [
    "FakeAvatar",
    "FakeEngine",
    "FakePicture",
    "FakeStream",
    "RecordingTransport",
    "SentFrame",
    "VirtualTimeLoop",
    "read_picture",
]
