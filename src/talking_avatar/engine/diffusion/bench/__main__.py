"""``python -m talking_avatar.engine.diffusion.bench SUBJECT [--json FILE]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from talking_avatar.engine.diffusion.bench import SUBJECTS, Report, Row, run


def main() -> None:
    """Measure, print a table, and save the report where one is asked for."""
    parser = argparse.ArgumentParser(prog="talking_avatar.engine.diffusion.bench")
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--model", default="avatar-57b")
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--sustain-s", type=float, default=60.0)
    parser.add_argument("--num-replays", type=int, default=200)
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    def show(row: Row) -> None:
        (line,) = Report(subject="", setting={}, machine={}, rows=(row,)).lines()
        print(line, flush=True)

    report = run(
        arguments.subject,
        model=arguments.model,
        tp=arguments.tp,
        sustain_s=arguments.sustain_s,
        num_replays=arguments.num_replays,
        num_layers=arguments.num_layers,
        on_row=show,
    )
    print(report.machine)
    if arguments.json is not None:
        report.save(arguments.json)


if __name__ == "__main__":
    main()
