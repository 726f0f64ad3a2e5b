"""Methods against each other: every method, backbone, noise rate and seed, under one protocol.

The recipe of a cell is `DATA-BACKBONE-METHOD`; noise rate and seed are set on top. Choices were made on the
validation split; the test split is looked at once a cell, with the best model of the validation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sremkit.bench.grid import run_grid, write_csv
from sremkit.evaluation.tables import aligned
from sremkit.recipes import Recipe, load_recipe

SHOWN = {
    "test_rsum": "R_sum",
    "test_i2t/R@1": "i2t R@1",
    "test_t2i/R@1": "t2i R@1",
    "train_auroc": "AUROC",
    "crowd_auroc": "crowd",
    "noisy_gradient_ratio": "noisy gradients",
    "seconds_per_epoch": "s/epoch",
    "peak_memory_mb": "MB",
}


def method_cells(
    data: str,
    backbones: Sequence[str],
    methods: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
    *,
    protocol: str = "caption",
    overrides: Sequence[str] = (),
) -> list[tuple[dict[str, Any], Recipe]]:
    """Every combination, with the labels of its row."""
    cells = []
    for backbone in backbones:
        for rate in rates:
            for method in methods:
                for seed in seeds:
                    settings = [f"noise.rate={rate}", f"noise.protocol={protocol}", f"noise.seed={seed}"]
                    recipe = load_recipe(
                        f"{data}-{backbone}-{method}", [*settings, f"training.seed={seed}", *overrides]
                    )
                    labels = {
                        "data": data,
                        "backbone": backbone,
                        "method": method,
                        "rate": rate,
                        "seed": seed,
                    }
                    cells.append((labels, recipe))
    return cells


def run_methods(
    cells: Sequence[tuple[dict[str, Any], Recipe]], out: Path, *, side_by_side: int = 1
) -> list[dict[str, Any]]:
    """Run the cells and write `out` as CSV; finished cells are kept beside it."""
    total = len(cells)
    done = [0]

    def tell(row: dict[str, Any]) -> None:
        done[0] += 1
        names = " ".join(str(row[key]) for key in ("backbone", "method", "rate", "seed"))
        print(
            f"[{done[0]}/{total}] {names}: val {row['val_rsum']:.1f} (last {row['last_val_rsum']:.1f}), "
            f"{row['seconds']:.0f} s",
            flush=True,
        )

    rows = run_grid(cells, out.with_suffix(".cells"), side_by_side=side_by_side, on_row=tell)
    write_csv(rows, out)
    return rows


def summary_table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean ± deviation over seeds, a line for each backbone, noise rate and method. Single models."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["backbone"], row["rate"], row["method"]), []).append(row)
    shown = {key: name for key, name in SHOWN.items() if any(row.get(key) is not None for row in rows)}
    lines = [["backbone", "noise", "method", "seeds", *shown.values()]]
    for (backbone, rate, method), members in groups.items():
        cells = [_spread([m[key] for m in members if m.get(key) is not None], key) for key in shown]
        lines.append([backbone, f"{rate:g}", method, str(len(members)), *cells])
    return aligned(lines)


def _spread(values: Sequence[float], key: str) -> str:
    values = [value for value in values if not math.isnan(value)]  # without noise there is nothing to detect
    if not values:
        return "-"
    digits = 1 if "R@" in key or "rsum" in key or "seconds" in key else 0 if key.endswith("mb") else 3
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
