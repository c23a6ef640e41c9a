"""What docs/turns-and-time.md shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "turns-and-time.md"


def test_the_test_that_the_page_shows_passes() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [shown] = [block for block in blocks if "def test_" in block]
    namespace: dict[str, Any] = {}
    exec(shown, namespace)
    [test] = [value for name, value in namespace.items() if name.startswith("test_")]
    test()
