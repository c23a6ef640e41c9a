"""The command line's ``weights``: import, quantize, random, show."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from typer.testing import CliRunner, Result  # noqa: E402

from talking_avatar.cli import app, weights_app  # noqa: E402
from talking_avatar.engine.diffusion.weights import wan_import  # noqa: E402
from talking_avatar.engine.diffusion.weights.checkpoint import read_config  # noqa: E402


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["weights", *map(str, arguments)])


def test_random_weights_are_drawn_shown_and_quantized(tmp_path: Path) -> None:
    drawn = run("random", "tiny", tmp_path / "drawn", "--seed", 3, "--precision", "fp32")
    assert drawn.exit_code == 0, drawn.output
    assert drawn.stdout == run("show", tmp_path / "drawn").stdout
    assert "tiny, 0.2 M parameters" in drawn.stdout
    assert "matrices in fp32" in drawn.stdout

    small = run("quantize", tmp_path / "drawn", tmp_path / "small")
    assert small.exit_code == 0, small.output
    assert "matrices in fp8" in small.stdout

    again = run("quantize", tmp_path / "small", tmp_path / "again")
    assert again.exit_code == 2
    assert again.stderr == f"error: {tmp_path / 'small'}: is in FP8 already\n"
    assert not (tmp_path / "again").exists()


def test_a_folder_of_diffusers_is_imported(tmp_path: Path) -> None:
    source = tmp_path / "wan"
    diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=8, freq_dim=16, ffn_dim=32, num_layers=1,
    ).save_pretrained(source / "transformer")  # fmt: skip
    diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, num_res_blocks=1, is_residual=True, in_channels=12, out_channels=12,
        patch_size=2, scale_factor_spatial=16, latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    ).save_pretrained(source / "vae")  # fmt: skip
    done = run("import", source, tmp_path / "new")
    assert done.exit_code == 0, done.output
    config, precision = read_config(tmp_path / "new")
    assert (config.hidden, config.num_layers, precision) == (24, 1, "bf16")
    assert (config.width, config.height) == (704, 1088)
    assert not list((tmp_path / "new").rglob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("random", "huge", "NEW"), "no model is called 'huge'"),
        (("random", "tiny", "NEW", "--precision", "int4"), "precision int4: choose fp32, bf16"),
        (("show", "EMPTY"), "config.json: not there, so"),
        (("import", "EMPTY", "NEW"), "no configuration of AutoencoderKLWan"),
        (("quantize", "EMPTY", "NEW"), "config.json: not there, so"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "EMPTY").mkdir()
    words = [tmp_path / word if word.isupper() else word for word in arguments]
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "NEW").exists()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rooms = wan_import.__name__.rpartition(".")[0]
    for name in [name for name in sys.modules if name.startswith(rooms)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("show", tmp_path)
    assert result.exit_code == 2
    assert 'pip install "talking-avatar[diffusion]"' in result.stderr


def test_the_documented_commands_exist() -> None:
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    shown = re.findall(r"^talking-avatar weights +(\w+) ", page.read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(str(command.name) for command in weights_app.registered_commands)
