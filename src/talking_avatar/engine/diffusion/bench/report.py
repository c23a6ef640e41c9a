"""What a benchmark found, as values: rows of numbers, and the machine they were read on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        name: What ran.
        numbers: Times, rates and errors by name; units end the names.
        note: What was emulated, or against what the output was checked.
    """

    name: str
    numbers: dict[str, float | str]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows of one run on one machine.

    Attributes:
        subject: What was measured.
        setting: Configuration and sizes.
        machine: GPU, versions, date.
        rows: In the order they ran.
    """

    subject: str
    setting: dict[str, Any]
    machine: dict[str, Any]
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        """Return the whole report as indented JSON."""
        return json.dumps(asdict(self), indent=1)

    def save(self, path: Path) -> None:
        """Write `to_json` to a file."""
        path.write_text(self.to_json() + "\n")

    def lines(self) -> list[str]:
        """Return a plain table, one row a line."""
        return [f"{row.name:44s} {_numbers(row)}  {row.note}".rstrip() for row in self.rows]


def _numbers(row: Row) -> str:
    values = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.numbers.items()
    )
    return ", ".join(values)
