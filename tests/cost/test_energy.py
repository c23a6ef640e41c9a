"""Energy counters: asked for by UUID, None wherever nobody can tell. NVML is a stand-in here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from talking_avatar.cost import Meter
from talking_avatar.cost.energy import NvmlEnergy
from talking_avatar.cost.holding import Holdings
from talking_avatar.engine.base import Device

UUID = "12345678-abcd"


class Nvml(ModuleType):
    """A driver with one GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.millijoules = 5_000
        self.num_lookups = 0
        self.has_counter = True

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.num_lookups += 1
        if uuid != f"GPU-{UUID}":
            raise self.NVMLError(uuid)
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.has_counter:
            raise self.NVMLError("not supported")
        return self.millijoules


def torch_with(uuid: str, *, is_initialized: bool = True) -> SimpleNamespace:
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        get_device_properties=lambda device: SimpleNamespace(uuid=uuid),
    )
    return SimpleNamespace(cuda=cuda)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    driver = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setitem(sys.modules, "torch", torch_with(UUID))
    return driver


def test_a_session_is_charged_what_its_gpu_consumed(nvml: Nvml) -> None:
    meter = Meter([Device("cuda:0", "H200", "denoise")], holdings=Holdings(NvmlEnergy()))
    meter.start(0.0)
    nvml.millijoules += 3_600_000
    meter.stop(10.0)
    nvml.millijoules += 1_000_000
    usage = meter.usage(20.0)
    assert (usage.energy_wh, usage.devices[0].energy_wh) == (1.0, 1.0)
    assert nvml.num_lookups == 1


def test_nobody_is_asked_about_cpus_and_gpus_that_torch_has_not_opened(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NvmlEnergy()("cpu") is None
    assert NvmlEnergy()(object()) is None
    monkeypatch.setitem(sys.modules, "torch", torch_with(UUID, is_initialized=False))
    assert NvmlEnergy()("cuda:0") is None
    monkeypatch.delitem(sys.modules, "torch")
    assert NvmlEnergy()("cuda:0") is None
    assert nvml.num_lookups == 0


def test_a_gpu_without_a_counter_and_one_that_nvml_does_not_know(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NvmlEnergy()
    nvml.has_counter = False
    assert reader("cuda:0") is None
    monkeypatch.setitem(sys.modules, "torch", torch_with("other"))
    assert NvmlEnergy()("cuda:0") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlEnergy()("cuda:0") is None
