"""What a test may ask of the machine, for tests beside the code as well as those in tests/."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

import pytest

pytest_plugins = ["talking_avatar.testing.plugin"]


@functools.cache
def _num_cuda_gpus() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _lacks(marker: str) -> str | None:
    """Say what the machine lacks for a marker; None if nothing."""
    match marker:
        case "gpu" if _num_cuda_gpus() < 1:
            return "no CUDA GPU"
        case "multigpu" if _num_cuda_gpus() < 2:
            return f"{_num_cuda_gpus()} CUDA GPUs, two are needed"
        case "livekit" if importlib.util.find_spec("livekit") is None:
            return "livekit-agents is not installed"
        case "browser" if shutil.which("chromium") is None:
            return "Chromium is not installed"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail, a test that asks for more than there is."""
    for marker in ("gpu", "multigpu", "livekit", "browser"):
        if item.get_closest_marker(marker) is None or (lack := _lacks(marker)) is None:
            continue
        if marker == "gpu" and os.environ.get("TALKING_AVATAR_REQUIRE_GPU") == "1":
            pytest.fail(f"{lack}, and TALKING_AVATAR_REQUIRE_GPU=1", pytrace=False)
        pytest.skip(lack)
