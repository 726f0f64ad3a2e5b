"""The field's recall table, and runs side by side, as plain text."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sremkit.training.run_folder import RunFolder

RECALLS = [f"{direction}/R@{k}" for direction in ("i2t", "t2i") for k in (1, 5, 10)]


def recall_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """R@1, R@5 and R@10 of both directions and their sum, a line a row."""
    lines = [["", "image→text", "", "", "text→image", "", "", ""], ["", *["R@1", "R@5", "R@10"] * 2, "R_sum"]]
    for name, metrics in rows.items():
        lines.append([name, *(f"{metrics[key]:.1f}" for key in RECALLS), f"{metrics['rsum']:.1f}"])
    return aligned(lines)


def compare_runs(paths: Sequence[Path]) -> str:
    """What differs between runs and what they reached, a line a run."""
    runs = [RunFolder.open(path) for path in paths]
    settings = [_flat(tomllib.loads(run.config.read_text(encoding="utf-8"))) for run in runs]
    keys = sorted(set().union(*settings) - {"name"})
    differing = [key for key in keys if len({repr(s.get(key)) for s in settings}) > 1]
    lines = [["run", *differing, "epochs", "best R_sum", "last R_sum", "seconds", "peak MB"]]
    for run, chosen in zip(runs, settings, strict=True):
        history, record = run.read_metrics(), run.read_record()
        recall = [row["val/rsum"] for row in history if "val/rsum" in row]
        reached = [f"{max(recall):.1f}", f"{recall[-1]:.1f}"] if recall else ["-", "-"]
        cost = [f"{record[key]:.0f}" if key in record else "-" for key in ("seconds", "peak_memory_mb")]
        lines.append(
            [
                str(run.path),
                *(str(chosen.get(key, "-")) for key in differing),
                str(len(history)),
                *reached,
                *cost,
            ]
        )
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
