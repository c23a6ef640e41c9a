"""Placements: memory, floors, what is refused, and that a real model is as large as planned."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from talking_avatar.config import DiffusionConfig
from talking_avatar.engine.diffusion import plan
from talking_avatar.engine.diffusion.cache.kv import KVCache, KVShape
from talking_avatar.engine.diffusion.cache.ring import RingShape
from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config
from talking_avatar.engine.diffusion.layout import padded_heads
from talking_avatar.engine.diffusion.model.dit import DiT
from talking_avatar.engine.diffusion.ranks.comm import ThreadComm
from talking_avatar.engine.diffusion.ranks.rendezvous import Rendezvous
from talking_avatar.errors import OutOfMemory


def test_the_57b_plan_prints_the_published_numbers() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan.render(plan.describe(named_config("avatar-57b"), 4)))
    text = console.export_text()
    console.file.close()
    for number in ("57.38 B", "373.3 TFLOP", "757", "5,788", "2.240 PFLOP/s", "7,302 slots"):
        assert number in text, number


def test_four_or_five_gpus() -> None:
    placements = {p.name: p.gpus_held for p in plan.FOUR_OR_FIVE}
    assert placements == {"tp3+1": 4, "tp4 shared": 4, "tp4+1": 5}


def test_floors_and_refusal() -> None:
    config = named_config("avatar-57b")
    assert pytest.approx(plan.describe(config, 4).floor_s, abs=1e-4) == 62.6e-3
    assert plan.describe(config, 2).can_be_live
    assert not plan.describe(config, 1).can_be_live
    with pytest.raises(ValueError, match="at least one rank"):
        plan.describe(config, 0)


def test_one_80_gb_gpu_holds_the_57b_model_in_fp8() -> None:
    report = plan.describe(named_config("avatar-57b"), 1)
    assert 57.4e9 < report.weight_bytes < 59e9
    assert report.rank_bytes < 80e9


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("tp", [1, 3])
def test_planned_bytes_are_the_real_ones(tiny: AvatarDiTConfig, tp: int, precision) -> None:
    dense = torch.float32 if precision == "fp32" else torch.bfloat16
    comm = ThreadComm(0, Rendezvous(tp))
    model = DiT(tiny, comm, precision=precision, dense=dense)
    report = plan.describe(tiny, tp, precision=precision, kv_precision=precision)
    tables = [
        p for n, p in model.named_parameters() if p.dtype == torch.float32 and dense != p.dtype
    ]
    real = sum(p.nbytes for p in model.parameters())
    kept_in_fp32 = sum(p.nbytes // 2 for p in tables if p.numel() > 0)
    assert abs(real - report.weight_bytes) <= kept_in_fp32
    shape = KVShape(
        num_layers=tiny.num_layers, num_heads=padded_heads(tiny, tp) // tp,
        head_dim=tiny.head_dim, ring=RingShape.of(tiny),
    )  # fmt: skip
    slots = shape.num_slots / tiny.stored  # rounded up to 16
    planned = (report.kv_bytes + report.kv_scale_bytes) * slots
    assert KVCache(shape, precision).nbytes == pytest.approx(planned, rel=1e-9)


def test_memory_is_predicted_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda device: 10**9)
    options = DiffusionConfig(model="avatar-5b", weights="random", devices=("cpu", "cpu"))
    with pytest.raises(OutOfMemory, match=r"avatar-5b needs 54\.\d GB on cpu \(2 of 2 ranks") as e:
        plan.check_memory(named_config("avatar-5b"), options)
    assert e.value.free_bytes == 10**9
    assert e.value.needed_bytes is not None
    assert e.value.needed_bytes > 13e9 + 4 / 2 * 20e9  # the decoder, in FP32
    plan.check_memory(replace(named_config("tiny"), spare=5), options)


def test_this_machine_says_what_is_free() -> None:
    free = plan.free_bytes("cpu")
    assert free is None or free > 2**20


def test_the_command_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "talking_avatar", "plan", "--config", "avatar-57b", "--tp", "4"],
        capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for number in ("57.38 B", "373.3 TFLOP", "757", "5,788", "15.33", "tp4+1"):
        assert number in done.stdout, number


def test_the_command_refuses_an_unknown_model() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "talking_avatar", "plan", "--config", "avatar-58b"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no model is called 'avatar-58b'" in done.stderr
