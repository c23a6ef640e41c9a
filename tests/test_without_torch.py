"""The package in an environment that has neither torch nor triton."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import talking_avatar

ABSENT = ("torch", "functorch", "torchgen", "triton", "safetensors", "diffusers", "transformers")

PROGRAM = """
import asyncio, importlib.util
from importlib.resources import files

import numpy as np

from talking_avatar import AvatarSession, DiffusionConfig, MissingDependency, open_engine
from talking_avatar.engine.diffusion import config, layout, plan

assert all(importlib.util.find_spec(name) is None for name in ("torch", "triton"))
assert plan.describe(config.named_config("avatar-57b"), 4).rank_bytes > 0
photo = str(files("talking_avatar.assets") / "portrait.jpg")


async def main():
    async with AvatarSession(photo, clock="unpaced") as session:
        done = await session.say(np.zeros(4_000, np.int16), sample_rate=24_000)
    print(round(24 * done.played_s), "frames")
    try:
        await open_engine(DiffusionConfig(model="tiny", weights="random"))
    except MissingDependency as error:
        print(error)


asyncio.run(main())
"""


def environment_without(names: tuple[str, ...], folder: Path) -> Path:
    """Link everything that is installed here into a folder, but those packages."""
    for packages in map(Path, site.getsitepackages()):
        for entry in packages.iterdir() if packages.is_dir() else ():
            package = entry.name.partition("-")[0].partition(".")[0]
            if package not in names and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


def test_package_and_portrait_engine_need_no_torch(tmp_path: Path) -> None:
    source = Path(talking_avatar.__file__).parents[1]
    packages = environment_without(ABSENT, tmp_path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],  # -S: no site-packages but the folder
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{packages}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4 frames" in done.stdout.splitlines()
    assert 'pip install "talking-avatar[diffusion]"' in done.stdout
