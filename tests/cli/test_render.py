"""`render` makes the file that was asked for, says what it took, and leaves no half of one."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.cli import app
from talking_avatar.config import PortraitConfig
from talking_avatar.file_transport import _Writer
from talking_avatar.media import decode_file
from talking_avatar.render import Progress
from talking_avatar.render import render as render_file

SIZE = "192x256"
REPORT = {
    "frames", "fps", "duration_s", "width", "height", "prepare_s", "ms_per_frame_p50",
    "ms_per_frame_p95", "ms_per_frame_max", "render_fps", "real_time_factor", "first_frame_s",
    "late_frames", "cpu_cores", "peak_rss_bytes", "gpu_hours",
}  # fmt: skip


def render(output: Path, *options: Any) -> Result:
    arguments = ["render", portrait_path(), speech_path(), "-o", output, "--size", SIZE, *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rendered")
    result = render(folder / "out.mp4", "--report", folder / "report.json")
    assert result.exit_code == 0, result.output
    (folder / "stdout.txt").write_text(result.stdout)
    return folder


def pictures(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]


def test_the_video_is_as_long_as_the_speech(rendered: Path) -> None:
    speech_s = len(decode_file(speech_path())) / 24_000
    with av.open(str(rendered / "out.mp4")) as container:
        video = container.streams.video[0]
        assert (video.width, video.height) == (192, 256)
        assert video.average_rate == Fraction(24, 1)
        assert video.frames == 171  # 7.1 s are 170.4 frames
        assert container.duration is not None
        assert abs(container.duration / 1e6 - speech_s) <= 1 / 24


def test_the_sound_is_the_speech(rendered: Path) -> None:
    speech = decode_file(speech_path())
    sound = decode_file(rendered / "out.mp4")[: len(speech)]
    correlation = {
        lag: np.corrcoef(sound[2_000 + lag : 160_000 + lag], speech[2_000:160_000])[0, 1]
        for lag in range(-1_000, 1_001, 50)
    }
    assert max(correlation, key=correlation.__getitem__) == 0
    assert correlation[0] >= 0.99


def test_the_picture_moves(rendered: Path) -> None:
    frames = pictures(rendered / "out.mp4")
    steps = [float(np.abs(b.astype(int) - a).mean()) for a, b in itertools.pairwise(frames)]
    assert np.mean(steps) > 0.05


def test_the_report_holds_what_it_promises(rendered: Path) -> None:
    report = json.loads((rendered / "report.json").read_text())
    assert set(report) == REPORT
    assert (report["frames"], report["fps"], report["duration_s"]) == (171, 24, 7.125)
    assert (report["width"], report["height"]) == (192, 256)
    assert report["late_frames"] == 0
    assert report["gpu_hours"] == 0.0
    assert (
        0 < report["ms_per_frame_p50"] <= report["ms_per_frame_p95"] <= report["ms_per_frame_max"]
    )
    assert report["real_time_factor"] == pytest.approx(report["render_fps"] / 24)
    assert report["first_frame_s"] > 0
    assert 0 < report["cpu_cores"] <= (os.cpu_count() or 1) + 0.5
    assert report["peak_rss_bytes"] > 20_000_000


def test_the_summary_is_short_and_there_is_no_bar_off_a_terminal(rendered: Path) -> None:
    lines = (rendered / "stdout.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [
        "video", "192x256,", "speed", "latency", "CPU", "GPU",
    ]  # fmt: skip


def test_same_seed_same_video_and_another_seed_another(rendered: Path, tmp_path: Path) -> None:
    assert render(tmp_path / "same.mp4").exit_code == 0
    assert render(tmp_path / "other.mp4", "--seed", 1).exit_code == 0
    first = pictures(rendered / "out.mp4")
    np.testing.assert_array_equal(pictures(tmp_path / "same.mp4"), first)
    assert not np.array_equal(pictures(tmp_path / "other.mp4"), first)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.mp4"
    command = [sys.executable, "-m", "talking_avatar", "render"]
    command += [str(portrait_path()), str(speech_path()), "-o", str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(6_000):
            if any(tmp_path.iterdir()) or process.poll() is not None:
                break
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "error: interrupted: nothing was written\n"
    assert list(tmp_path.iterdir()) == []


async def test_a_rendering_that_is_stopped_half_way_leaves_nothing(tmp_path: Path) -> None:
    config = PortraitConfig(width=192, height=256)
    rendering: asyncio.Task[object] | None = None

    def stop(progress: Progress) -> None:
        if progress.frames == 40 and rendering is not None:
            rendering.cancel()

    rendering = asyncio.create_task(
        render_file(
            portrait_path(), speech_path(), tmp_path / "x.mp4", engine=config, on_progress=stop
        )
    )
    with pytest.raises(asyncio.CancelledError):
        await rendering
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("folder.mp4",), "is a folder"),
        (("none/x.mp4",), "there is no folder"),
        (("x.mp4", "--report", "x.mp4"), "would overwrite the video"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_before_the_rendering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.mp4").mkdir()
    result = render(Path(options[0]), *options[1:])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder.mp4"]


def test_a_terminal_gets_a_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's word for "this is a terminal"
    result = render(tmp_path / "out.mp4")
    assert result.exit_code == 0
    assert "rendering" in result.stderr
    assert "/171" in result.stderr
    assert "rendering" not in result.stdout


def test_a_full_disk_ends_the_rendering_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mux, num_tried = _Writer._mux, []

    def mux_until_full(writer: _Writer, packets: list[Any]) -> None:
        num_tried.append(len(packets))
        if len(num_tried) == 60:
            raise OSError("No space left on device")
        mux(writer, packets)

    monkeypatch.setattr(_Writer, "_mux", mux_until_full)
    result = render(tmp_path / "out.mp4")
    assert result.exit_code == 2
    assert result.stderr == "error: out.mp4 cannot be written: No space left on device\n"
    assert list(tmp_path.iterdir()) == []
    assert len(num_tried) == 60, "nothing was written after it"
