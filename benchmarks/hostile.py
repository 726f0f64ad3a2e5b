"""Try every hostile input of `tests/hostile` and print how many got their sentence.

python -m benchmarks.hostile
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import make_parser, run_command

TESTS = Path(__file__).parents[1] / "tests"


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(make_parser("hostile", __doc__), try_inputs, arguments)


def try_inputs(args: argparse.Namespace) -> int:
    sys.path.insert(0, str(TESTS))
    table = importlib.import_module("hostile.table")
    started, failures = time.monotonic(), 0
    print(f"{'group':<20} {'inputs':>7} {'tracebacks':>11} {'crashes':>8} {'lost rows':>10} {'other':>6}")
    totals = [0] * 5
    for group, cases in table.GROUPS.items():
        problems = [problem for case in cases if (problem := case.attempt())]
        crashes = sum("TimeoutError" in problem for problem in problems)
        tracebacks = sum(problem.startswith("traceback") for problem in problems) - crashes
        lost = sum(problem.startswith("afterwards") for problem in problems)
        row = [len(cases), tracebacks, crashes, lost, len(problems) - tracebacks - crashes - lost]
        print(_line(group, row))
        totals = [total + count for total, count in zip(totals, row, strict=True)]
        failures += len(problems)
    print(_line("all", totals))
    print(f"{time.monotonic() - started:.0f} s")
    return int(failures > 0)


def _line(group: str, row: list[int]) -> str:
    return f"{group:<20} {row[0]:>7,} {row[1]:>11} {row[2]:>8} {row[3]:>10} {row[4]:>6}"


if __name__ == "__main__":
    sys.exit(main())
