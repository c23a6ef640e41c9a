"""Photos and speech that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[1].parent / "shared"


def _shared(folder: str) -> Path:
    path = SHARED / folder
    if not path.is_dir():
        pytest.skip(f"no ../shared/{folder} beside the repository")
    return path


@pytest.fixture(scope="session")
def portraits() -> Path:
    """Give the folder of photos that are not part of the project; skip without it."""
    return _shared("portraits")


@pytest.fixture(scope="session")
def speech_clips() -> Path:
    """Give the folder of human speech that is not part of the project; skip without it."""
    return _shared("speech")
