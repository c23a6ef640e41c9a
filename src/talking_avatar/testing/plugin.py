"""Fixtures for pytest: ``pytest_plugins = ["talking_avatar.testing.plugin"]``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from talking_avatar.testing.virtual_time import run_in_virtual_time


@pytest.fixture
def virtual_time() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Give a function that runs a coroutine in virtual time and fails if tasks are left over."""
    return run_in_virtual_time
