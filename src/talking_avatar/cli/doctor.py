"""``talking-avatar doctor``: what works on this machine, as a table."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Say what works on this machine, and what would not."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from talking_avatar.doctor import examine, is_healthy

    marks = {"ok": "[green]ok[/]", "absent": "[yellow]absent[/]", "broken": "[red]broken[/]"}
    findings = examine()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(marks[finding.state], finding.subject, escape(finding.detail))
    Console().print(table)
    if not is_healthy(findings):
        typer.echo("error: the portrait engine does not work here: see what is broken", err=True)
        raise typer.Exit(1)
