"""Prints tables: none of their numbers is ever cut off. Takes rich's tables, gives lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

FILE_COLUMNS = 140
"""Of a file or a pipe, which have no width of their own."""


def print_table(table: Table) -> None:
    """Print as wide as the terminal is, or wider where a table has no words that may wrap.

    Rich would shorten numbers to "2..." in a narrow terminal; the terminal's line break loses none.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_COLUMNS)
    if all(column.no_wrap for column in table.columns):
        options = console.options.update(width=10 * FILE_COLUMNS)
        console.width = max(console.width, console.measure(table, options=options).maximum)
    console.print(table)
