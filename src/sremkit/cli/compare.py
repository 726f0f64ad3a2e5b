"""Put runs side by side: settings that differ, best validation result, last epoch, time and memory.

srem compare runs/srem runs/infonce
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "put runs side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")


def run(args: argparse.Namespace) -> None:
    from sremkit.evaluation.tables import compare_runs

    print(compare_runs(args.runs))
