"""What the benchmarks of a rank's step say without a GPU: sizes, ranges, reports."""

from __future__ import annotations

import json

import pytest
import torch

from talking_avatar.engine.diffusion import bench
from talking_avatar.engine.diffusion.bench import linear, shard
from talking_avatar.engine.diffusion.config import named_config

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("tp", "sizes"),
    [
        (4, [(4608, 8192), (8192, 1536), (15360, 8192), (8192, 7680)]),
        (8, [(2304, 8192), (8192, 768), (7680, 8192), (8192, 3840)]),
    ],
)
def test_products_of_one_rank(tp: int, sizes: list[tuple[int, int]]) -> None:
    assert list(linear.shapes(named_config("avatar-57b"), tp).values()) == sizes


def test_the_measured_window_is_full_and_wraps() -> None:
    config = named_config("avatar-57b")
    (sink, newer, older) = shard.window_ranges(config, CPU).tolist()
    assert sink == [0, 1246]
    assert newer[0] == sink[1]
    assert older[0] > newer[1]
    assert older[1] == config.stored == 7302
    assert sum(stop - start for start, stop in (sink, newer, older)) == 5788


def test_a_report_is_json_and_a_table() -> None:
    row = bench.Row(name="ours", numbers={"us": 59.05, "wait_ran_out": "False"}, note="checked")
    report = bench.Report(subject="attention", setting={"tp": 4}, machine={}, rows=(row,))
    assert json.loads(report.to_json())["rows"][0]["numbers"]["us"] == 59.05
    (line,) = report.lines()
    assert line.split() == ["ours", "us", "59.05,", "wait_ran_out", "False", "checked"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("subject", bench.SUBJECTS)
def test_without_a_gpu_it_says_so(subject: bench.Subject) -> None:
    with pytest.raises(RuntimeError, match="needs a CUDA GPU"):
        bench.run(subject)
