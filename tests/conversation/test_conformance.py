"""The conformance suite passes what keeps the promise and finds what breaks it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from talking_avatar.file_transport import FileTransport
from talking_avatar.testing import RecordingTransport
from talking_avatar.testing import conformance as suite
from talking_avatar.testing.conformance import TRANSPORT_CHECKS, TransportCheck
from talking_avatar.types import Frame, Position


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
async def test_recording_transport(check: TransportCheck) -> None:
    await check(RecordingTransport)


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
async def test_file_transport(check: TransportCheck, tmp_path: Path) -> None:
    await check(lambda: FileTransport(tmp_path / "out.mp4"))


class Scribbles(RecordingTransport):
    async def send(self, frame: Frame) -> None:
        frame.audio[0] = 0


class Foresees(RecordingTransport):
    def played_position(self) -> Position:
        return Position(99.0, "estimated")


class Hangs(RecordingTransport):
    async def aclose(self) -> None:
        await asyncio.sleep(99)


class Forgets(RecordingTransport):
    async def send(self, frame: Frame) -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            raise KeyError from None


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Scribbles, suite.takes_frames_in_both_layouts),
        (Foresees, suite.knows_no_more_than_it_was_handed),
        (Hangs, suite.closes_at_any_time),
        (Forgets, suite.survives_a_cancelled_send),
    ],
)
async def test_what_breaks_the_promise_is_found(
    broken: Any, check: TransportCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_CLOSE_S", 0.05)
    with pytest.raises((AssertionError, ValueError)):
        await check(broken)
