"""How long `import talking_avatar` takes in a fresh interpreter, beyond the interpreter itself.

python benchmarks/import_time.py [--runs 15]

Prints the median CPU time of an import and of ``talking-avatar --help``; the goals are 150 and
500 ms. CPU time, so that a busy machine counts less.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

GOALS_MS = {"import talking_avatar": 150.0, "talking-avatar --help": 500.0}
_STATEMENTS = {
    "import talking_avatar": "import talking_avatar",
    "talking-avatar --help": (
        "import contextlib, io, sys; sys.argv = ['talking-avatar', '--help']\n"
        "import talking_avatar.cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    talking_avatar.cli.main()\n"
    ),
}


def median_ms(statement: str, runs: int) -> float:
    """Give the median over fresh interpreters, the first one (cold disk) left out."""
    program = f"import time\nt = time.process_time()\n{statement}\nprint(time.process_time() - t)"
    times = [
        float(
            subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
        )
        for _ in range(runs + 1)
    ]
    return statistics.median(times[1:]) * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    for name, statement in _STATEMENTS.items():
        print(f"{name}: {median_ms(statement, runs):.0f} ms of CPU (goal {GOALS_MS[name]:.0f})")


if __name__ == "__main__":
    main()
