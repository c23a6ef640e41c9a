"""The time model against what was published, and what it refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from talking_avatar.cli import app
from talking_avatar.engine.diffusion.calibration import BOUNDS, ROWS, fit, residuals
from talking_avatar.engine.diffusion.config import named_config
from talking_avatar.engine.diffusion.gpus import GPU_KINDS, Hardware
from talking_avatar.engine.diffusion.placement import plan_for, refusal, what_would_do
from talking_avatar.engine.diffusion.plan import FOUR_OR_FIVE, decoder_bytes
from talking_avatar.engine.diffusion.step_time import (
    CONSTANTS,
    FUSED,
    PRODUCTION,
    Constants,
    constant_names,
    parts_of,
)

BIG = named_config("avatar-57b")
RESIDUALS = residuals()
CHOSEN = [r for r in RESIDUALS if r.is_chosen]


def names_of(items: list) -> list[str]:
    return [item.row.what for item in items]


# ---- calibration


def test_the_published_table_is_all_there() -> None:
    values = {row.value for row in ROWS}
    assert values >= {240.9, 159.3, 147.4, 154.3, 118.2, 128.7}


@pytest.mark.parametrize("residual", CHOSEN, ids=names_of(CHOSEN))
def test_each_row_is_met_within_ten_percent(residual) -> None:
    assert residual.verdict in ("fitted", "predicted")
    assert abs(residual.error) <= 0.10, f"{residual.row.what}: {residual.error:+.1%}"


LEFT_OUT = [r for r in CHOSEN if r.left_out_error is not None]


@pytest.mark.parametrize("residual", LEFT_OUT, ids=names_of(LEFT_OUT))
def test_a_row_left_out_of_the_fit_is_predicted_within_fifteen_percent(residual) -> None:
    assert abs(residual.left_out_error) <= 0.15, f"{residual.left_out_error:+.1%}"


def test_seven_rows_are_left_out_in_turn() -> None:
    assert len(LEFT_OUT) == 7


def test_the_slowdown_by_sharing_lies_in_the_published_range() -> None:
    [row] = [r for r in CHOSEN if r.row.quantity == "slowdown"]
    assert 1.18 <= row.predicted <= 1.26


def test_the_constants_are_five_bounded_and_what_the_fit_gives() -> None:
    again = fit()
    assert len(fields(Constants)) == len(constant_names()) == len(BOUNDS) == 5
    for name, bound in BOUNDS.items():
        value = getattr(CONSTANTS, name)
        assert bound.low < value < bound.high, f"{name} sticks to its bound"
        assert value == pytest.approx(getattr(again, name), rel=0.005), name


def test_both_readings_of_four_gpus_and_five_are_rows() -> None:
    for value in (240.9, 159.3, 147.4):
        readings = {r.reading.name.split(",")[0] for r in RESIDUALS if r.row.value == value}
        assert readings == {placement.name for placement in FOUR_OR_FIVE}


def test_a_fused_product_hides_wires_and_nothing_else() -> None:
    h100 = GPU_KINDS["H100"]
    plain = parts_of(BIG, h100, 4, stack=PRODUCTION, decoder_gpu=h100)
    fused = parts_of(BIG, h100, 4, stack=FUSED, decoder_gpu=h100)
    assert fused.wires < plain.wires
    assert replace(fused, wires=plain.wires) == plain


# ---- the model itself


def test_the_slower_of_ranks_and_decoder_sets_the_pace() -> None:
    b200, l40s = GPU_KINDS["B200"], GPU_KINDS["L40S"]
    quick = parts_of(BIG, b200, 4, decoder_gpu=b200)
    assert quick.step_s == quick.denoise_s
    slow = parts_of(BIG, b200, 4, decoder_gpu=l40s)
    assert slow.binds == "decoder"
    assert slow.step_s == slow.decoder > slow.denoise_s
    shared = parts_of(BIG, b200, 4)
    assert shared.denoise_s == pytest.approx(quick.denoise_s + shared.contention)


def test_more_ranks_shorten_products_but_not_launches() -> None:
    h200 = GPU_KINDS["H200"]
    two, four = (parts_of(BIG, h200, tp, decoder_gpu=h200) for tp in (2, 4))
    assert four.products == pytest.approx(two.products / 2)
    assert four.launch == two.launch
    assert four.wires > two.wires
    assert parts_of(BIG, h200, 1, decoder_gpu=h200).wires == 0.0


def test_a_power_cap_slows_what_computes_and_not_what_moves() -> None:
    full, half = GPU_KINDS["B200"], GPU_KINDS["B200"].capped(0.5)
    assert half.fp8_flops == pytest.approx(full.fp8_flops * 0.7937, rel=1e-4)
    before, after = (parts_of(BIG, gpu, 2, decoder_gpu=gpu) for gpu in (full, half))
    assert after.products > before.products
    assert (after.wires, after.upkeep) == (before.wires, before.upkeep)
    with pytest.raises(ValueError, match="power cap"):
        full.capped(1.2)


def test_the_decoders_memory_is_its_weights_and_seven_pasts() -> None:
    assert decoder_bytes(BIG, dtype_bytes=2) == pytest.approx(1.41e9 + 7 * 2.74e9, rel=0.02)
    assert decoder_bytes(named_config("avatar-small"), dtype_bytes=2) == 0


# ---- placements


def test_every_placement_of_four_gpus_is_tried() -> None:
    plan = plan_for(BIG, Hardware.parse("4xH200"))
    assert [c.placement.name for c in plan.candidates] == [
        "tp1 shared", "tp1+1", "tp2 shared", "tp2+1", "tp3 shared", "tp3+1", "tp4 shared",
    ]  # fmt: skip
    assert plan.best is not None
    assert plan.best.placement.name == "tp3+1"
    assert plan.best.is_tight
    assert plan.best.gpus_held == {"H200": 4}


def test_comfort_is_preferred_to_fewer_gpus_and_fewer_to_more_of_it() -> None:
    five = plan_for(BIG, Hardware.parse("5xH200")).best
    assert five is not None
    assert (five.placement.name, five.is_tight) == ("tp4+1", False)
    eight = plan_for(BIG, Hardware.parse("8xH200")).best
    assert eight is not None
    assert eight.placement.gpus_held == 5


def test_two_h200_and_a_decoder_do_not_hold_24_fps_and_what_would_is_said() -> None:
    plan = plan_for(BIG, Hardware.parse("3xH200"))
    assert plan.best is None
    words = refusal(BIG, plan)
    assert "3xH200 cannot hold 24 fps of avatar-57b" in words
    assert "tp2+1, makes 19.0 fps" in words
    for other in what_would_do(BIG):
        assert other.is_live
        assert f"{other.placement.gpus_held}x{other.gpu.name} ({other.placement.name}" in words


def test_what_does_not_fit_is_refused_for_its_memory() -> None:
    plan = plan_for(BIG, Hardware.parse("2xRTX 4090"))
    assert {candidate.binds for candidate in plan.candidates} == {"memory"}
    assert "no placement fits" in refusal(BIG, plan)


def test_gpus_without_nvlink_are_bound_by_wires() -> None:
    plan = plan_for(BIG, Hardware.parse("8xL40S"))
    assert plan.best is None
    assert plan.nearest.binds == "wires"


def test_the_decoder_may_sit_on_another_kind() -> None:
    plan = plan_for(BIG, Hardware.parse("4xH200+1xB200"))
    assert plan.best is not None
    assert plan.best.gpus_held == {"H200": 4, "B200": 1}


def test_a_small_model_is_live_on_one_gpu() -> None:
    best = plan_for(named_config("avatar-5b"), Hardware.parse("H200")).best
    assert best is not None
    assert best.placement.name == "tp1 shared"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [("4xA1", "GPUs known are"), ("9xH100", "1 to 8"), ("0xH100", "1 to 8"), ("", "like 4xH100"),
     ("2xH100+2xL40S", "one of another kind"), ("1xH100+1xL40S+1xL40S", "one of another kind")],
)  # fmt: skip
def test_hardware_that_is_none(words: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Hardware.parse(words)


# ---- the command


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", *words])


def test_the_command_shows_every_residual_and_constant() -> None:
    done = run("--published")
    assert done.exit_code == 0, done.stderr
    for residual in RESIDUALS:
        assert f"{residual.error:+.1%}" in done.stdout
    for name in BOUNDS:
        assert name.replace("_", " ") in done.stdout


def test_the_docs_have_every_residual_of_the_fit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
    for r in CHOSEN:
        digits = 2 if r.row.unit == "x" else 1
        left_out = "" if r.left_out_error is None else f"{r.left_out_error:+.1%} "
        assert (
            f"| {r.row.what} | {r.reading.name} | {r.row.value:.{digits}f} {r.row.unit} "
            f"| {r.predicted:.{digits}f} | {r.error:+.1%} | {left_out}| {r.verdict} |"
        ) in page
    for name, bound in BOUNDS.items():
        value = f"{getattr(CONSTANTS, name):g} | {bound.low:g} to {bound.high:g}"
        assert f"| {name.replace('_', ' ')} | {value} | {bound.source} |" in page


def test_the_command_plans_and_refuses() -> None:
    done = run("--hardware", "5xH200")
    assert done.exit_code == 0, done.stderr
    assert "tp4+1 holds 24 fps with" in done.stdout
    done = run("--hardware", "3xH200")
    assert done.exit_code == 1
    assert "These would, at full power: " in done.stderr


def test_the_command_says_where_the_model_ends() -> None:
    assert "lower bounds" in run("--config", "avatar-small", "--hardware", "H200").stdout
    assert "lower bounds" not in run("--hardware", "2xB200").stdout
