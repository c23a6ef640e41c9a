"""What works on this machine, and what would not.

Takes nothing. Gives findings, each with what it means for the user. Never installs or changes
anything, and never raises: a library that fails to load is a finding.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeAlias

from talking_avatar._version import __version__

State: TypeAlias = Literal["ok", "absent", "broken"]
"""``absent``: an optional part that is not installed. ``broken``: the default engine needs it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        subject: What it is.
        state: See `State`.
        detail: Version or numbers; what to do where it does not work.
    """

    subject: str
    state: State
    detail: str


def examine() -> list[Finding]:
    """Look at this machine; takes a second or two, more where torch is installed."""
    return [
        Finding("talking-avatar", "ok", __version__),
        Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}"),
        Finding("CPU", "ok", f"{_num_cores()} cores for this process"),
        _guarded("portrait engine", "broken", _portrait),
        _guarded("speech", "broken", _audio),
        _guarded("video files", "broken", _codecs),
        _guarded("diffusion engine", "absent", _torch),
        _guarded("fused kernels", "absent", _triton),
        *_gpus(),
        *_plugins(),
    ]


def is_healthy(findings: list[Finding]) -> bool:
    """Whether the default engine works here."""
    return all(finding.state != "broken" for finding in findings)


def _guarded(subject: str, otherwise: State, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, "ok", look())
    except Exception as error:  # whatever a library raises while it loads is what is asked for
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        return Finding(subject, otherwise, f"{kind}{error}".partition("\n")[0])


def _num_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _portrait() -> str:
    """Make a character of the bundled photo: that takes OpenCV and all three networks."""
    import asyncio

    import cv2

    from talking_avatar.assets import portrait_path
    from talking_avatar.engine import open_engine

    async def prepare() -> None:
        engine = await open_engine("portrait")
        try:
            await engine.prepare(portrait_path())
        finally:
            await engine.aclose()

    began_s = time.perf_counter()
    asyncio.run(prepare())
    return f"OpenCV {cv2.__version__}; a photo prepared in {time.perf_counter() - began_s:.1f} s"


def _audio() -> str:
    from talking_avatar.audio import AudioFormat, SpeechStream

    stream = SpeechStream(AudioFormat(16_000))
    num_samples = len(stream.push(bytes(3_200))) + len(stream.flush())
    if num_samples != 2_400:
        raise RuntimeError(f"100 ms of speech became {num_samples} samples, not 2400")
    return f"soxr {version('soxr')}"


def _codecs() -> str:
    import av

    missing = [name for name in ("libx264", "aac") if name not in av.codecs_available]
    if missing:
        raise RuntimeError(f"PyAV {av.__version__} has no encoder {' nor '.join(missing)}")
    return f"PyAV {av.__version__} with libx264 and aac"


def _torch() -> str:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        raise RuntimeError(
            "torch is not installed: pip install 'talking-avatar[diffusion]'"
        ) from None
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return f"torch {torch.__version__}, {build}"


def _triton() -> str:
    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        raise RuntimeError("triton is not installed: the diffusion engine runs unfused") from None


def _gpus() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    try:
        torch = importlib.import_module("torch")
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            size = f"{found.total_memory / 2**30:.0f} GiB, compute {found.major}.{found.minor}"
            yield Finding(f"cuda:{index}", "ok", f"{found.name}, {size}")
    except Exception as error:  # a broken driver must not end the examination
        yield Finding("CUDA", "absent", f"{type(error).__name__}: {error}".partition("\n")[0])


def _plugins() -> Iterator[Finding]:
    for name in (
        "talking-avatar-websocket",
        "talking-avatar-weights",
        "livekit-plugins-talking-avatar",
    ):
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "absent", f"pip install {name}")
