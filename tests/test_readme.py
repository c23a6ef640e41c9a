"""The README's ten lines do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import av

from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.audio import to_int16
from talking_avatar.media import decode_file

README = Path(__file__).parents[1] / "README.md"


def python_blocks(markdown: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)


def test_the_ten_lines_make_a_video(tmp_path: Path) -> None:
    (example,) = python_blocks(README.read_text())
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    shutil.copy(portrait_path(), tmp_path / "face.jpg")
    spoken_s = 1.0
    write_wav(tmp_path / "speech.wav", spoken_s)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.fullmatch(r"1\.0 s spoken; first frame after \d\.\d{3} s\n", done.stdout)
    with av.open(str(tmp_path / "out.mp4")) as video:
        assert (video.streams.video[0].width, video.streams.video[0].height) == (704, 1088)
        assert video.duration is not None
        assert video.duration / 1e6 >= spoken_s


def write_wav(path: Path, seconds: float) -> None:
    pcm = to_int16(decode_file(speech_path())[: int(seconds * 24_000)])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(pcm.tobytes())
