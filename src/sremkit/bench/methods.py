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

from sremkit.bench.grid import cell_key, row_file, run_grid, scores_file, write_csv
from sremkit.bench.means import Mean, backbones_to_train, keys_to_keep, mean_rows
from sremkit.bench.published import published_results, published_rsum
from sremkit.bench.tables import Table
from sremkit.errors import UnknownNameError, UserError
from sremkit.evaluation.tables import RECALLS
from sremkit.experiment import read_split
from sremkit.methods import METHODS
from sremkit.recipes import Recipe, load_recipe, recipe_files
from sremkit.settings import assign, parse_assignment, suggestion

TRUSTED_IMAGES = 500  # for methods that need right pairs, where no recipe says how many
ADDED_NOISE = (0.2, 0.4, 0.6)
REAL_NOISE = ("cc152k",)  # collections from the web, whose wrong pairs are their own; usually none are added
LABELS = ("backbone", "noise", "method", "seeds")
SHOWN = {
    **{f"test_{key}": key.replace("/", " ") for key in RECALLS},
    "test_rsum": "R_sum",
    "published_rsum": "published R_sum",
    "train_auroc": "AUROC",
    "crowd_auroc": "crowd",
    "noisy_gradient_ratio": "noisy gradients",
    "filter_seconds_per_epoch": "filter s/epoch",
    "seconds_per_epoch": "train s/epoch",
    "peak_memory_mb": "MB",
}
PUBLISHED_NOTE = (
    "The published sgraf is SAF and SGR trained apart, here saf+sgr; the backbone sgraf trains them together here. "
    "Published plain is hinge here. The source names neither its seeds nor whether its noise is per caption or image."
)


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


def usual_rates(data: str, added: Sequence[float] = ADDED_NOISE) -> list[float]:
    """The noise that is added to these data ("f30k", "f30k:/path") when nobody says how much.

    Args:
        added: to data whose pairs are right.
    """
    return [0.0] if name_and_place(data)[0] in REAL_NOISE else list(added)


def method_recipe(data: str, backbone: str, method: str, overrides: Sequence[str]) -> Recipe:
    """The recipe of a method; where there is none, SREM's with the method's own defaults in SREM's place."""
    own, common = f"{data}-{backbone}-{method}", f"{data}-{backbone}-srem"
    if own not in recipe_files() and common not in recipe_files():
        raise UnknownNameError(_what_there_is(data, backbone))
    if own in recipe_files():
        return load_recipe(own, overrides)
    options: dict[str, Any] = {"method": {"name": method}}
    for_method = [override for override in overrides if override.startswith("method.")]
    for override in for_method:
        assign(options, *parse_assignment(override))
    others = [override for override in overrides if override not in for_method]
    if METHODS[method].needs_trusted:
        others.insert(0, f"data.trusted_images={TRUSTED_IMAGES}")
    return replace(load_recipe(common, others), name=own, method=options["method"])


def _what_there_is(data: str, backbone: str) -> str:
    """Says that data and backbone have no recipes together, and which have."""
    backbones: dict[str, list[str]] = {}
    for name in recipe_files():
        known, _, rest = name.partition("-")
        if rest.endswith("-srem"):
            backbones.setdefault(known, []).append(rest.removesuffix("-srem"))
    if data in backbones:
        there = ", ".join(backbones[data])
        return f"the data '{data}' have no recipes for the backbone '{backbone}'; they have for: {there}"
    return f"there are no data called '{data}' with recipes by backbone; {suggestion(data, backbones)}"


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
    keys = {cell_key(recipe): recipe for _, recipe in cells}
    kept = {k for k in keys if row_file(folder, k).exists()}.difference(again)
    _refuse_tests_that_would_fail([recipe for key, recipe in keys.items() if key not in kept])
    if kept:
        print(f"{len(kept)} of {len(keys)} cells are there already", flush=True)
    done = [len(kept)]

    def tell(row: dict[str, Any]) -> None:
        done[0] += 1
        names = " ".join(str(row[key]) for key in ("backbone", "method", "rate", "seed"))
        print(
            f"[{done[0]}/{len(keys)}] {names}: val {row['val_rsum']:.1f} (last {row['last_val_rsum']:.1f}), "
            f"{row['seconds']:.0f} s",
            flush=True,
        )

    rows = run_grid(cells, folder, side_by_side=side_by_side, keep_scores=keep, on_row=tell)
    if keep:
        print(f"averaging the scores of {len(means)} pairs of cells", flush=True)
    rows += mean_rows(means, folder)
    write_csv(rows, out)
    return rows


def _refuse_tests_that_would_fail(recipes: Sequence[Recipe]) -> None:
    """Read the test splits once before anything is made or trained: data may be missing, or folds not fit."""
    for data in {repr(recipe.data): recipe.data for recipe in recipes}.values():
        images, folds = read_split(data, data.test_split).num_images, data.test_folds or 1
        if images % folds:
            raise UserError(
                f"data.test_folds is {folds}, but the {images} images of the split '{data.test_split}' cannot be "
                "cut into so many folds of equal size"
            )


def methods_table(rows: Sequence[dict[str, Any]], *, title: str) -> Table:
    """Mean ± deviation over seeds; single models and ensembles apart, published numbers below."""
    rows = [{**row, "published_rsum": _published_beside(row)} for row in rows]
    shown = {key: name for key, name in SHOWN.items() if any(row.get(key) is not None for row in rows)}
    table = Table(title, [*LABELS, *shown.values()], labels=3)
    singles = [row for row in rows if row.get("networks", 1) == 1]
    ensembles = [row for row in rows if row.get("networks", 1) > 1]
    table.add_section("single models", _lines(singles, shown))
    table.add_section("ensembles, whose similarities are averaged", _lines(ensembles, shown))
    larger = [row for row in ensembles if row["networks"] > 2]
    if larger:
        named = dict.fromkeys(f"{row['backbone']} {row['method']} ({row['networks']})" for row in larger)
        table.notes.append(f"Ensembles of more than two networks: {', '.join(named)}.")
    for data in dict.fromkeys(row["data"] for row in rows):
        _add_published(table, data, {row["rate"] for row in rows if row["data"] == data}, shown)
    return table


def _lines(rows: Sequence[dict[str, Any]], shown: dict[str, str]) -> list[list[str]]:
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["backbone"], row["rate"], row["method"]), []).append(row)
    lines = []
    for (backbone, rate, method), members in groups.items():
        cells = [
            mean_and_deviation([m[key] for m in members if m.get(key) is not None], key)
            if key != "published_rsum"
            else members[0][key] or "-"
            for key in shown
        ]
        noise = _noise_in_words(members[0]["data"], rate)
        lines.append([backbone, noise, method, str(len(members)), *cells])
    return lines


def _noise_in_words(data: str, rate: float) -> str:
    if data not in REAL_NOISE:
        return f"{rate:g}"
    return f"real + {rate:g}" if rate else "real"


def _published_beside(row: dict[str, Any]) -> str | None:
    folds = int(row.get("test_folds") or 1)
    return published_rsum(row["data"], row["backbone"], row["method"], row["rate"], folds=folds)


def _add_published(table: Table, data: str, rates: set[float], shown: dict[str, str]) -> None:
    """Sections with what others have printed for these data and rates, and how it is to be read."""
    sections: dict[str, list[list[str]]] = {}
    for row in sorted(published_results(data, rates), key=_is_ensemble):
        kind = "ensembles" if _is_ensemble(row) else "single models"
        folds = f", mean of {row['folds']} folds" if row["folds"] != "1" else ""
        heading = (
            f"published, not measured by us: {row['source']}, table {row['table']}, {data}{folds}: {kind}"
        )
        remark = f" ({row['remark']})" if row["remark"] else ""
        cells = [row.get(key.removeprefix("test_"), "-") for key in shown]
        noise = row["noise_rate"] or _noise_in_words(data, 0)
        sections.setdefault(heading, []).append([row["model"], noise, row["method"] + remark, "-", *cells])
    for heading, lines in sections.items():
        table.add_section(heading, lines)
    if sections:
        table.notes.append(PUBLISHED_NOTE)


def _is_ensemble(row: dict[str, str]) -> bool:
    """Whether a published result is that of several networks: of SAF and SGR, or of a method that trains two."""
    return row["model"] == "sgraf" or (row["method"] in METHODS and METHODS[row["method"]].networks > 1)


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """As text, with the digits that suit the number of this name."""
    values = [value for value in values if not math.isnan(value)]  # without noise there is nothing to detect
    if not values:
        return "-"
    digits = 1 if "R@" in key or "rsum" in key or "seconds" in key else 0 if key.endswith("mb") else 3
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
