"""Imports flow one way: a room may import its own layer or any lower one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import talking_avatar

SOURCE = Path(talking_avatar.__file__).parent
LAYERS: list[set[str]] = [
    {"_version", "errors", "types", "config", "assets"},
    {"engine"},
    {"plausibility", "tape", "turn_plan", "pixels"},
    {
        "audio",
        "media",
        "file_transport",
        "turn",
        "pacing",
        "stats",
        "transport",
        "capacity",
        "watch",
        "estimate",
        "estimate_plot",
        "cost",
        "ledger",
        "telemetry",
    },
    {"session"},
    {"render", "doctor", "bench", "bench_engine", "bench_meter"},
    {"cli"},
    {"testing", "__init__", "__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not is_typing_only(child):
            yield child
            yield from runtime_nodes(child)


def imported_rooms(path: Path) -> Iterator[str]:
    package = ["talking_avatar", *path.relative_to(SOURCE).with_suffix("").parts][:-1]
    for node in runtime_nodes(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            is_root = module == "talking_avatar"
            names = [f"{module}.{a.name}" for a in node.names] if is_root else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "talking_avatar" and rest:
                yield rest.split(".")[0]


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_flow_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in RANK, f"{path} is in no layer: add it to LAYERS, or move it"
    upward = [r for r in imported_rooms(path) if RANK.get(r, -1) > RANK[room]]
    assert not upward, f"{path.name} ({room}) imports upward: {upward}"
