"""Compare runs: settings that differ, best validation result, last epoch, time and memory.

srem compare runs/srem runs/infonce
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HELP = "compare settings and results of runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")


def run(args: argparse.Namespace) -> None:
    from sremkit.bench.tables import aligned
    from sremkit.config.aliases import rename_keys
    from sremkit.config.recipes import read_toml
    from sremkit.training.run_folder import RunFolder

    runs = [RunFolder.open(path) for path in args.runs]
    tables = [read_toml(run.config) for run in runs]
    settings = [_flat(rename_keys(table, warn=False)) for table in tables]
    keys = sorted(set().union(*settings) - {"name"})
    differing = [key for key in keys if len({repr(s.get(key)) for s in settings}) > 1]
    lines = [["run", *differing, "epochs", "best R_sum", "last R_sum", "seconds", "peak MB"]]
    for run, chosen in zip(runs, settings, strict=True):
        history, record = run.read_metrics(), run.read_record()
        recall = [row["val/rsum"] for row in history if "val/rsum" in row]
        reached = [f"{max(recall):.1f}", f"{recall[-1]:.1f}"] if recall else ["-", "-"]
        cost = [f"{record[key]:.0f}" if key in record else "-" for key in ("seconds", "peak_memory_mb")]
        values = [str(chosen.get(key, "-")) for key in differing]
        lines.append([str(run.path), *values, str(len(history)), *reached, *cost])
    print(aligned(lines))


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of nested tables, by keys such as "training.epochs"."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
