"""The GPU that kernel tests run on, or the reason why they don't."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture
def cuda() -> torch.device:
    """Give the first GPU; skip without one, or fail when a GPU is required."""
    if not torch.cuda.is_available():
        if os.environ.get("TALKING_AVATAR_REQUIRE_GPU") == "1":
            pytest.fail("TALKING_AVATAR_REQUIRE_GPU=1, but torch sees no CUDA GPU")
        pytest.skip("needs a CUDA GPU")
    return torch.device("cuda", 0)
