"""The examples of README and quickstart do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import wave
from pathlib import Path

import av
import pytest

from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.audio import to_int16
from talking_avatar.media import decode_file

ROOT = Path(__file__).parents[1]
SPOKEN_S = 1.0
STAND_INS = """
from pathlib import Path

shown, played = [], []
show, play = shown.append, played.append
text = "hello"


class tts:
    @staticmethod
    async def stream(text):
        pcm = Path("speech.wav").read_bytes()[44:]
        for start in range(0, len(pcm), 999):
            yield pcm[start : start + 999]
"""
AROUND = """
import asyncio
from talking_avatar import AvatarSession


async def main():
    async with AvatarSession("face.jpg", clock="unpaced") as session:
        reader = asyncio.create_task(drain(session.frames()))
{fragment}
    await reader


async def drain(frames):
    async for _ in frames:
        pass


asyncio.run(main())
"""


def python_blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with face.jpg and one second of speech.wav."""
    shutil.copy(portrait_path(), tmp_path / "face.jpg")
    pcm = to_int16(decode_file(speech_path())[: int(SPOKEN_S * 24_000)])
    with wave.open(str(tmp_path / "speech.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(pcm.tobytes())
    return tmp_path


def run(program: str, folder: Path) -> str:
    """Run a program as its reader would, warnings as errors; give what it printed."""
    (folder / "example.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_ten_lines_make_a_video(folder: Path) -> None:
    (example,) = python_blocks("README.md")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    printed = run(example, folder)
    assert re.fullmatch(r"1\.0 s spoken; first frame after \d\.\d{3} s\n", printed)
    with av.open(str(folder / "out.mp4")) as video:
        assert (video.streams.video[0].width, video.streams.video[0].height) == (704, 1088)
        assert video.duration is not None
        assert video.duration / 1e6 >= SPOKEN_S


def test_the_quickstart_writes_a_file(folder: Path) -> None:
    assert run(python_blocks("docs/quickstart.md")[0], folder) == ""
    assert (folder / "out.mp4").stat().st_size > 10_000


def test_the_quickstart_gives_frames(folder: Path) -> None:
    counting = (
        "\nassert {p.shape for p in shown} == {(1088, 704, 3)}\nprint(len(shown), len(played))"
    )
    printed = run(STAND_INS + python_blocks("docs/quickstart.md")[1] + counting, folder)
    num_shown, num_played = (int(number) for number in printed.split())
    assert num_shown == num_played > 12


def test_the_quickstart_speaks_as_words_arrive(folder: Path) -> None:
    fragment = python_blocks("docs/quickstart.md")[2] + "result = await turn.result()\n"
    fragment += "print(result.played_s, result.interrupted)"
    program = STAND_INS + AROUND.format(fragment=textwrap.indent(fragment, " " * 8))
    assert run(program, folder) == "1.0 False\n"


def test_the_quickstart_is_interrupted(folder: Path) -> None:
    fragment = 'asyncio.create_task(session.say("speech.wav"))\nawait session.idle(0.25)\n'
    fragment += python_blocks("docs/quickstart.md")[3]
    program = STAND_INS + AROUND.format(fragment=textwrap.indent(fragment, " " * 8))
    assert re.fullmatch(r"heard \d\.\d\d s of it \(handed_out\)\n", run(program, folder))


def test_the_quickstart_has_a_transport(folder: Path) -> None:
    program = python_blocks("docs/quickstart.md")[4]
    program += """

import asyncio


async def main():
    async with session:
        print((await session.say("speech.wav")).played_s)


asyncio.run(main())
"""
    assert run(program, folder) == "1.0\n"


def test_the_quickstart_speaks_from_another_thread(folder: Path) -> None:
    fragment = "loop = asyncio.get_running_loop()\n"
    fragment += "call = lambda: " + python_blocks("docs/quickstart.md")[5]
    fragment += "print((await asyncio.to_thread(call)).played_s)"
    program = STAND_INS + AROUND.format(fragment=textwrap.indent(fragment, " " * 8))
    assert run(program, folder) == "1.0\n"
