"""What tests of conversations need: a fake engine, a recording transport, virtual time.

    from talking_avatar.testing import FakeEngine, RecordingTransport, VirtualTimeLoop

Loads no engine and no test framework; `talking_avatar.testing.plugin` is the pytest plugin.
"""

from __future__ import annotations

from talking_avatar.testing.conformance import TRANSPORT_CHECKS
from talking_avatar.testing.fake_engine import (
    FakeAvatar,
    FakeEngine,
    FakePicture,
    FakeStream,
    read_picture,
)
from talking_avatar.testing.recording_transport import RecordingTransport, SentFrame
from talking_avatar.testing.signals import counted
from talking_avatar.testing.virtual_time import (
    VirtualTimeLoop,
    in_virtual_time,
    run_in_virtual_time,
)

__all__ = [
    "TRANSPORT_CHECKS",
    "FakeAvatar",
    "FakeEngine",
    "FakePicture",
    "FakeStream",
    "RecordingTransport",
    "SentFrame",
    "VirtualTimeLoop",
    "counted",
    "in_virtual_time",
    "read_picture",
    "run_in_virtual_time",
]
