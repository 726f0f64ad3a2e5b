"""Methods against each other: every method, backbone, noise rate and seed, under one protocol.

The recipe of a cell is `DATA-BACKBONE-METHOD`, or that of SREM with the method exchanged where there is none;
noise rate and seed are set on top. Choices were made on the validation split; the test split is looked at once
a cell, with the best model of the validation. A backbone with a plus in its name, "saf+sgr", is no cell of its own but
the mean of two (`sremkit.bench.means`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sremkit.bench.grid import row_file, run_grid, scores_file, write_csv
from sremkit.bench.means import Mean, backbones_to_train, keys_to_keep, mean_rows
from sremkit.bench.published import published_results
from sremkit.bench.tables import Table
from sremkit.evaluation.tables import RECALLS
from sremkit.methods import METHODS
from sremkit.recipes import Recipe, load_recipe, recipe_files
from sremkit.settings import assign, parse_assignment

TRUSTED_IMAGES = 500  # for methods that need right pairs, where no recipe says how many
LABELS = ("backbone", "noise", "method", "seeds")
SHOWN = {
    **{f"test_{key}": key.replace("/", " ") for key in RECALLS},
    "test_rsum": "R_sum",
    "train_auroc": "AUROC",
    "crowd_auroc": "crowd",
    "noisy_gradient_ratio": "noisy gradients",
    "filter_seconds_per_epoch": "filter s/epoch",
    "seconds_per_epoch": "train s/epoch",
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
    """Every combination, with the labels of its row.

    Args:
        data: first part of the recipes' names, with where the data lies if not in its usual place: "f30k:/path".
        backbones: names; of a mean such as "saf+sgr" both members are cells.
        overrides: settings on top; `training.recorded` is left out for methods whose steps cannot be recorded.
    """
    data, located = name_and_place(data)
    cells = []
    for backbone in backbones_to_train(backbones):
        for rate in rates:
            for method in methods:
                for seed in seeds:
                    settings = [f"noise.rate={rate}", f"noise.protocol={protocol}", f"noise.seed={seed}"]
                    settings += [f"training.seed={seed}", *located, *that_it_can(method, overrides)]
                    labels = {
                        "data": data,
                        "backbone": backbone,
                        "method": method,
                        "rate": rate,
                        "seed": seed,
                    }
                    cells.append((labels, method_recipe(data, backbone, method, settings)))
    return cells


def that_it_can(method: str, overrides: Sequence[str]) -> list[str]:
    """The overrides without those that a method refuses: not every one can be recorded."""
    can = METHODS[method].recordable
    return [override for override in overrides if can or not override.startswith("training.recorded=")]


def name_and_place(data: str) -> tuple[str, list[str]]:
    """Of "f30k:/path" the first part of recipes' names, and the override that says where the data lie, if any."""
    name, _, source = data.partition(":")
    return name, [f"data.source={source}"] if source else []


def method_recipe(data: str, backbone: str, method: str, overrides: Sequence[str]) -> Recipe:
    """The recipe of a method; where there is none, SREM's with the method's own defaults in SREM's place."""
    own, common = f"{data}-{backbone}-{method}", f"{data}-{backbone}-srem"
    if own in recipe_files() or common not in recipe_files():
        return load_recipe(own, overrides)
    options: dict[str, Any] = {"method": {"name": method}}
    for_method = [override for override in overrides if override.startswith("method.")]
    for override in for_method:
        assign(options, *parse_assignment(override))
    others = [override for override in overrides if override not in for_method]
    if METHODS[method].needs_trusted:
        others.insert(0, f"data.trusted_images={TRUSTED_IMAGES}")
    return replace(load_recipe(common, others), name=own, method=options["method"])


def run_methods(
    cells: Sequence[tuple[dict[str, Any], Recipe]],
    out: Path,
    *,
    means: Sequence[Mean] = (),
    side_by_side: int = 1,
) -> list[dict[str, Any]]:
    """Run the cells, then average what is to be averaged; write `out` as CSV.

    Finished cells are kept beside it; with their scores on the test split, where a mean needs them.
    """
    folder = out.with_suffix(".cells")
    keep = keys_to_keep(means, folder)
    again = [k for k in keep if row_file(folder, k).exists() and not scores_file(folder, k).exists()]
    if again:
        print(f"{len(again)} finished cell(s) kept no scores to average and will run again", flush=True)
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

    rows = run_grid(cells, folder, side_by_side=side_by_side, keep_scores=keep, on_row=tell)
    if keep:
        print(f"averaging the scores of {len(means)} pairs of cells", flush=True)
    rows += mean_rows(means, folder)
    write_csv(rows, out)
    return rows


def methods_table(rows: Sequence[dict[str, Any]], *, title: str) -> Table:
    """Mean ± deviation over seeds; single models and ensembles apart, published numbers below."""
    shown = {key: name for key, name in SHOWN.items() if any(row.get(key) is not None for row in rows)}
    table = Table(title, [*LABELS, *shown.values()], labels=3)
    singles = [row for row in rows if row.get("networks", 1) == 1]
    ensembles = [row for row in rows if row.get("networks", 1) > 1]
    table.add_section("single models", _lines(singles, shown))
    table.add_section("ensembles, whose similarities are averaged", _lines(ensembles, shown))
    for data in dict.fromkeys(row["data"] for row in rows):
        rates = {row["rate"] for row in rows if row["data"] == data}
        table.add_section(f"published for {data}, not measured by us", _published_lines(data, rates, shown))
    larger = [row for row in ensembles if row["networks"] > 2]
    if larger:
        named = dict.fromkeys(f"{row['backbone']} {row['method']} ({row['networks']})" for row in larger)
        table.notes.append(f"Ensembles of more than two networks: {', '.join(named)}.")
    return table


def _lines(rows: Sequence[dict[str, Any]], shown: dict[str, str]) -> list[list[str]]:
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["backbone"], row["rate"], row["method"]), []).append(row)
    lines = []
    for (backbone, rate, method), members in groups.items():
        cells = [
            mean_and_deviation([m[key] for m in members if m.get(key) is not None], key) for key in shown
        ]
        lines.append([backbone, f"{rate:g}", method, str(len(members)), *cells])
    return lines


def _published_lines(data: str, rates: set[float], shown: dict[str, str]) -> list[list[str]]:
    lines = []
    for row in published_results(data):
        if row["noise_rate"] and float(row["noise_rate"]) not in rates:
            continue
        remark = f" ({row['remark']})" if row["remark"] else ""
        cells = [row.get(key.removeprefix("test_"), "-") for key in shown]
        lines.append([row["model"], row["noise_rate"] or "real", row["method"] + remark, "1", *cells])
    return lines


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """As text, with the digits that suit the number of this name."""
    values = [value for value in values if not math.isnan(value)]  # without noise there is nothing to detect
    if not values:
        return "-"
    digits = 1 if "R@" in key or "rsum" in key or "seconds" in key else 0 if key.endswith("mb") else 3
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
