"""One live session too many is refused, not made to stutter."""

from __future__ import annotations

import pytest

from talking_avatar.capacity import Capacity, available_cores
from talking_avatar.errors import AtCapacity
from talking_avatar.session import AvatarSession
from talking_avatar.session import owner as module
from talking_avatar.testing import FakeEngine, RecordingTransport, in_virtual_time


class Cpu:
    """CPU time that a test sets."""

    used_s = 0.0

    def __call__(self) -> float:
        return self.used_s


def test_three_sessions_at_sixty_percent_fit_two_cores_and_a_fourth_does_not() -> None:
    cpu = Cpu()
    capacity = Capacity(2, cpu_time=cpu)
    for num in range(3):
        capacity.admit(0.38, now=num * 10.0)
        cpu.used_s += 0.60 * (num + 1) * 10
    with pytest.raises(AtCapacity, match=r"use 0\.60 cores each") as refused:
        capacity.admit(0.38, now=30.0)
    assert refused.value.needed_cores == pytest.approx(2.4)
    assert refused.value.num_cores == 2
    capacity.release(now=31.0)
    capacity.admit(0.38, now=32.0)
    assert capacity.num_sessions == 3


def test_sessions_that_come_at_once_are_judged_by_what_their_engines_say() -> None:
    capacity = Capacity(1, cpu_time=Cpu())
    capacity.admit(0.4, now=0.0)
    capacity.admit(0.4, now=0.1)
    with pytest.raises(AtCapacity):
        capacity.admit(0.4, now=0.2)


def test_the_first_session_is_always_admitted_and_the_last_takes_its_measure_along() -> None:
    cpu = Cpu()
    capacity = Capacity(0.25, cpu_time=cpu)
    capacity.admit(2.0, now=0.0)
    cpu.used_s = 100
    capacity.release(now=50.0)
    capacity.admit(0.1, now=51.0)
    capacity.admit(0.1, now=52.0)


def test_nobody_is_admitted_while_sessions_stall() -> None:
    capacity = Capacity(100, cpu_time=Cpu())
    capacity.admit(0.1, now=0.0)
    for now in (1.0, 2.0, 3.0):
        capacity.admit(0.1, now=now)
        capacity.note_stall(now)
    with pytest.raises(AtCapacity, match="stalled 3 times in 10 s"):
        capacity.admit(0.1, now=4.0)
    capacity.admit(0.1, now=11.5)
    for _ in range(5):
        capacity.release(now=12.0)
    capacity.note_stall(13.0)


def test_this_process_has_cores() -> None:
    assert available_cores() > 0


@in_virtual_time
async def test_a_live_session_holds_a_lease_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capacity = Capacity(1, cpu_time=Cpu())
    monkeypatch.setattr(module, "PROCESS_CAPACITY", capacity)
    transport = RecordingTransport()
    engine = FakeEngine(step_s=0.015)
    async with AvatarSession("any", engine=engine, transport=transport):
        assert capacity.num_sessions == 1
        async with AvatarSession("any", engine=engine, transport=transport):
            with pytest.raises(AtCapacity):
                await AvatarSession("any", engine=engine).start()
            async with AvatarSession("any", engine=engine, clock="unpaced"):
                assert capacity.num_sessions == 2
            async with AvatarSession("any", engine=engine, checks_capacity=False):
                assert capacity.num_sessions == 2
    assert capacity.num_sessions == 0
