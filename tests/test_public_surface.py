"""What is public is listed, exists, is small, and costs nothing to import."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import talking_avatar

HEAVY = ("torch", "triton", "cv2", "av", "diffusers", "livekit")


def loaded_by(statement: str) -> set[str]:
    """Give the top-level modules that a fresh interpreter has after a statement."""
    program = (
        f"{statement}\nimport json, sys\nprint(json.dumps([m.split('.')[0] for m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", talking_avatar.__all__)
def test_every_listed_name_exists(name: str) -> None:
    assert getattr(talking_avatar, name) is not None


def test_the_list_is_sorted_small_and_without_doubles() -> None:
    names = talking_avatar.__all__
    assert list(names) == sorted(set(names))
    assert len(names) < 35


def test_listed_and_lazily_loaded_names_are_the_same() -> None:
    lazy = set(talking_avatar._ROOM_OF)
    assert lazy | {"__version__"} == set(talking_avatar.__all__) == set(dir(talking_avatar))


def test_the_lazily_loaded_rooms_are_those_that_type_checkers_see() -> None:
    """Each name of the TYPE_CHECKING imports comes from the room that loads it at run time."""
    source = Path(talking_avatar.__file__).read_text()
    typed = source.split("if TYPE_CHECKING:")[1].split("_ROOMS = {")[0]
    namespace: dict[str, object] = {}
    exec(inspect.cleandoc(typed), namespace)
    for name, room in talking_avatar._ROOM_OF.items():
        assert namespace[name] is getattr(importlib.import_module(room), name)


def test_every_public_class_and_function_says_what_it_is() -> None:
    for name in talking_avatar.__all__:
        value = getattr(talking_avatar, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by("import talking_avatar")
    assert "talking_avatar" in loaded
    assert not loaded & {*HEAVY, "numpy", "pydantic", "typer", "rich"}


def test_importing_every_public_name_loads_no_engine_nor_media_library() -> None:
    assert not loaded_by("from talking_avatar import *") & set(HEAVY)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = talking_avatar.nonsense


def test_the_docs_list_every_public_name_and_no_other() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted([*listed, "__version__"]) == sorted(talking_avatar.__all__)
