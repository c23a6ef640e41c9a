"""What is typed wrong ends in one line and status 2; what is right loads only what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from talking_avatar import __version__
from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.cli import app
from talking_avatar.doctor import Finding, examine, is_healthy

HEAVY = {"torch", "triton", "cv2", "av", "numpy"}


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: Any) -> str:
    """Run what must be refused; give its one line."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert result.stdout == ""
    return lines[0]


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"{__version__}\n")


def test_python_m_is_the_command() -> None:
    command = [sys.executable, "-m", "talking_avatar", "--version"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.decode() == (
        f"{__version__}\n"
    )


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import json, sys\n"
        "sys.argv = ['talking-avatar', 'render', '--help']\n"
        "from talking_avatar.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print()\nprint(json.dumps([m.split('.')[0] for m in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    *shown, modules = done.stdout.decode().splitlines()
    assert not set(json.loads(modules)) & HEAVY
    assert any("PHOTO" in line for line in shown)
    assert any("--report" in line for line in shown)


def test_a_photo_that_is_not_there(tmp_path: Path) -> None:
    line = refused("render", tmp_path / "none.jpg", speech_path(), "-o", tmp_path / "o.mp4")
    assert "none.jpg" in line
    assert list(tmp_path.iterdir()) == []


def test_a_photo_that_is_text(tmp_path: Path) -> None:
    (tmp_path / "face.jpg").write_text("not a picture")
    refused("render", tmp_path / "face.jpg", speech_path(), "-o", tmp_path / "o.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["face.jpg"]


def test_a_photo_without_a_face(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (400, 400), (90, 120, 200)).save(tmp_path / "sky.png")
    line = refused("render", tmp_path / "sky.png", speech_path(), "-o", tmp_path / "o.mp4")
    assert "face" in line


def test_speech_that_is_not_there(tmp_path: Path) -> None:
    line = refused("render", portrait_path(), tmp_path / "none.wav", "-o", tmp_path / "o.mp4")
    assert line == f"error: no file at {tmp_path / 'none.wav'}"


def test_speech_that_is_a_picture(tmp_path: Path) -> None:
    line = refused("render", portrait_path(), portrait_path(), "-o", tmp_path / "o.mp4")
    assert "portrait.jpg holds no sound" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out.avi"], "must end in one of .mp4"),
        (["-o", "o.mp4", "--size", "big"], "--size big: write WIDTHxHEIGHT"),
        (["-o", "o.mp4", "--size", "705x1088"], "must be even"),
        (["-o", "o.mp4", "--size", "64x64"], "width: Input should be greater than or equal to 128"),
        (["-o", "o.mp4", "--engine", "magic"], "choose portrait or diffusion"),
        (["-o", "o.mp4", "--engine", "diffusion", "--size", "640x640"], "--size belongs to"),
        (["-o", "o.mp4", "--device", "cuda:0"], "--checkpoint and --device belong to"),
        (["-o", "o.mp4", "--report", "none/r.json"], "no folder none for the report"),
        (["-o", "none/o.mp4"], "none"),
        (["-o", "o.mp4", "--face", "3"], "face"),
    ],
)
def test_settings_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused("render", portrait_path(), speech_path(), *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_diffusion_engine_without_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "o.mp4"
    line = refused("render", portrait_path(), speech_path(), "-o", output, "--engine", "diffusion")
    assert "no checkpoint" in line


@pytest.mark.parametrize("arguments", [["render"], ["render", "a.jpg", "b.wav"], ["fly"]])
def test_an_incomplete_command_line_shows_its_usage(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def test_doctor_finds_the_default_engine_working() -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for subject in ("portrait engine", "speech", "video files", "libx264 and aac", "diffusion"):
        assert subject in result.stdout
    assert "broken" not in result.stdout


def test_doctor_names_each_subject_once() -> None:
    subjects = [finding.subject for finding in examine()]
    assert len(subjects) == len(set(subjects))


def test_doctor_fails_when_something_needed_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_h264() -> str:
        raise RuntimeError("PyAV has no encoder libx264")

    monkeypatch.setattr("talking_avatar.doctor._codecs", no_h264)
    found = examine()
    assert Finding("video files", "broken", "PyAV has no encoder libx264") in found
    assert not is_healthy(found)
    result = run("doctor")
    assert result.exit_code == 1
    assert "portrait engine does not work here" in result.stderr
