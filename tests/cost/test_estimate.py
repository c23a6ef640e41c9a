"""Estimates: their arithmetic, and that the meter agrees."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from talking_avatar.cli import app
from talking_avatar.cost import RateCard
from talking_avatar.engine.base import Device
from talking_avatar.engine.diffusion.config import named_config
from talking_avatar.engine.diffusion.gpus import Hardware
from talking_avatar.estimate import Demand, Estimate, NotLiveError, compare, estimate, of_candidate
from talking_avatar.estimate_plot import draw
from talking_avatar.session import AvatarSession
from talking_avatar.testing import FakeEngine, RecordingTransport, run_in_virtual_time

ROOT = Path(__file__).parents[2]
BIG = named_config("avatar-57b")
CARD = RateCard.parse(["H100=2.99", "H100=2.49@2027-01-01", "B200=5.50"])
DAY = date(2026, 12, 1)
DEMAND = Demand(sessions=100, hours=8, busy=0.6)


def of(hardware: str, demand: Demand = DEMAND, **options: object) -> Estimate:
    options = {"rates": CARD, "on": DAY, **options}
    return estimate(BIG, Hardware.parse(hardware), demand, **options)  # type: ignore[arg-type]


def test_the_arithmetic_of_a_day() -> None:
    four = of("4xH100")
    assert (four.gpus_per_session, four.peak_gpus) == (4, 400)
    assert (four.gpu_hours, four.fleet_gpu_hours) == (1_920.0, 3_200.0)
    assert four.price_per_session_hour == Decimal("11.96")
    assert four.price == Decimal("5740.80")
    assert four.fleet_price == Decimal("9568.00")
    assert four.price_per_conversation is not None
    assert four.price_per_conversation.quantize(Decimal("0.01")) == Decimal("1.99")


def test_rates_are_those_of_the_day() -> None:
    assert of("4xH100", on=date(2027, 1, 1)).price_per_session_hour == Decimal("9.96")


def test_an_unknown_rate_is_an_unknown_price() -> None:
    assert of("4xH200").price is None
    mixed = of("4xH100+1xH200")
    assert mixed.candidate.gpus_held == {"H100": 4, "H200": 1}
    assert mixed.price_per_session_hour is None


def test_what_is_not_live_is_not_priced() -> None:
    with pytest.raises(NotLiveError, match="These would"):
        of("3xH200")


@pytest.mark.parametrize(
    "demand", [{"sessions": 0}, {"hours": 0}, {"busy": 0}, {"busy": 1.2}, {"conversation_s": -1}]
)
def test_a_demand_that_cannot_be(demand: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Demand(**demand)  # type: ignore[arg-type]


@pytest.mark.parametrize("hardware", ["5xH100", "2xB200", "4xH100+1xH200"])
def test_the_meter_says_what_the_estimate_said(hardware: str) -> None:
    """Sessions come and go under the virtual clock, on engines as fast as was predicted."""
    demand = Demand(sessions=3, hours=0.04, busy=0.5)
    expected = of(hardware, demand)

    async def one(number: int) -> tuple[float, Decimal | None, int]:
        await asyncio.sleep(number * 10)
        engine = fake(expected, f"host{number}")
        session = AvatarSession(
            "any", engine=engine, transport=RecordingTransport(), rates=CARD
        )  # fmt: skip
        async with session:
            await session.idle(demand.session_hours * 3600 / demand.sessions)
        usage = session.usage()
        assert session.stats().num_stalls == 0
        return usage.gpu_hours, usage.price, session.stats().num_frames

    async def all_of_them() -> list[tuple[float, Decimal | None, int]]:
        return list(await asyncio.gather(*(one(number) for number in range(demand.sessions))))

    metered = run_in_virtual_time(all_of_them())
    assert sum(hours for hours, _, _ in metered) == pytest.approx(expected.gpu_hours, rel=0.02)
    if expected.price is None:
        assert [price for _, price, _ in metered] == [None] * 3
    else:
        total = sum((price for _, price, _ in metered if price is not None), Decimal(0))
        assert float(total) == pytest.approx(float(of(hardware, demand).price or 0), rel=0.02)


def fake(expected: Estimate, host: str) -> FakeEngine:
    candidate = expected.candidate
    devices = [
        Device(f"{host}.cuda:{rank}", candidate.gpu.name, "denoise")
        for rank in range(candidate.placement.tp)
    ]
    decode_s = 0.0
    if candidate.decoder_gpu is not None:
        devices.append(Device(f"{host}.cuda:9", candidate.decoder_gpu.name, "decode"))
        decode_s = candidate.parts.decoder
    return FakeEngine(
        step_s=candidate.parts.denoise_s, decode_s=decode_s, frames_per_chunk=4,
        pipeline_depth=2, devices=tuple(devices),
    )  # fmt: skip


# ---- the picture


def test_the_picture_has_a_bar_for_each_and_cuts_what_leaves_it() -> None:
    names = ("4xH100", "2xB200", "8xL40S", "1xRTX4090")
    plans = compare(BIG, tuple(Hardware.parse(name) for name in names))
    shown = [of_candidate(candidate, DEMAND, rates=CARD, on=DAY) for _, candidate in plans]
    root = ET.fromstring(draw(shown, names))
    text = " ".join("".join(element.itertext()) for element in root.iter() if element.text)
    for words in (*names, "24 fps: 166.7 ms", "11.96 USD/h", "not live", "does not fit in memory"):
        assert words in text
    assert "938 ms" in text
    width = float(root.attrib["width"])
    for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(bar.get("x", 0)) + float(bar.get("width", 0)) <= width


# ---- the commands


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["cost", "estimate", *words])


ISSUE = (
    "--hardware", "4xH100", "--config", "avatar-57b", "--rate", "H100=2.99",
    "--sessions", "100", "--hours", "8", "--busy", "0.6",
)  # fmt: skip


def test_the_command_says_everything(tmp_path: Path) -> None:
    done = run(*ISSUE, "--plot", str(tmp_path / "plot.svg"))
    assert done.exit_code == 0, done.stderr
    for words in ("tp3+1", "headroom 3.6%", "400 GPUs", "1,920.0 held", "11.96 USD", "5xH200"):
        assert words in done.stdout, words
    ET.parse(tmp_path / "plot.svg")
    row = json.loads(run(*ISSUE, "--json").stdout)
    assert (row["peak_gpus"], row["gpu_hours"]) == (400, 1_920.0)
    assert Decimal(row["price"]) == Decimal("5740.80")


def test_the_command_refuses() -> None:
    done = run("--hardware", "3xH200")
    assert done.exit_code == 1
    assert "cannot hold 24 fps" in done.stderr
    assert run("--hardware", "3xH1").exit_code == 2
    assert run(*ISSUE, "--rate", "H100").exit_code == 2
    raster = run(*ISSUE, "--plot", "plot.png")
    assert raster.exit_code == 2
    assert "give plot.svg" in raster.stderr
    unknown = run(*ISSUE, "--rate", "h100=3")
    assert unknown.exit_code == 2
    assert "no GPU is called 'h100'; known are H100" in unknown.stderr


def test_no_number_is_cut_off_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    printed = re.sub(r"\x1b\[[0-9;]*m", "", run(*ISSUE).stdout)
    assert "\u2026" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "40")
    printed = run(*ISSUE).stdout
    assert "5,740.80" in printed
    assert "\u2026" not in printed


def test_the_example_runs_and_its_numbers_are_those_of_the_docs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "cost_estimate.py")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "cost.md").read_text()
    for line in done.stdout.splitlines():
        assert re.sub(r"\s+", " ", line.strip()) in re.sub(r"\s+", " ", page)
