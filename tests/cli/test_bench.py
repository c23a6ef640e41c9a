"""`bench` measures and prints; what the numbers are is the machine's business."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from talking_avatar.bench_engine import run_engine
from talking_avatar.cli import app
from talking_avatar.config import PortraitConfig

SMALL = PortraitConfig(width=128, height=192)


async def test_the_engine_alone_is_measured_over_the_frames_asked_for() -> None:
    report = await run_engine(1.0, engine=SMALL)
    assert (report.engine, report.width, report.height) == ("portrait", 128, 192)
    assert report.num_frames == 24
    assert 0 < report.chunk_ms_p50 <= report.chunk_ms_p95 <= report.chunk_ms_max
    assert report.real_time_factor == pytest.approx(1e3 / 24 / report.ms_per_frame)
    assert report.real_time_factor_of_a_core == pytest.approx(1e3 / 24 / report.cpu_ms_per_frame)


def test_json_and_text_hold_the_same_fields() -> None:
    as_json = CliRunner().invoke(app, ["bench", "turns", "1", "--json"])
    as_text = CliRunner().invoke(app, ["bench", "turns", "1"])
    assert (as_json.exit_code, as_text.exit_code) == (0, 0)
    names = list(json.loads(as_json.stdout))[1:]
    assert [line.split()[0] for line in as_text.stdout.splitlines()[1:]] == names
    assert {"num_turns", "p50_ms", "p95_ms", "peak_rss_bytes"} <= set(names)


def test_numbers_that_cannot_be_are_refused() -> None:
    for arguments in (["sessions", "0"], ["engine", "--seconds", "0"], ["soak", "--minutes", "0"]):
        assert CliRunner().invoke(app, ["bench", *arguments]).exit_code == 2


@pytest.mark.parametrize("subject", ["step", "cache", "attention", "linear", "allreduce"])
def test_kernels_are_not_measured_without_a_gpu(
    subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["bench", subject])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: bench {subject} needs a CUDA GPU; torch ")
