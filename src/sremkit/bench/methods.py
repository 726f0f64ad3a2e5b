"""Compare methods under one protocol: every method, backbone, noise rate and seed is one run, a cell of a grid.

Hyperparameters were chosen on the validation split, with as many trials as the table says. The test split is scored
once per cell, with the model that was best on the validation split. Differences between methods are paired by seed
(differences.py). A backbone with a plus in its name, "saf+sgr", is the mean of two cells.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from sremkit.bench.differences import METRIC, NOTE, Difference, differences_to_best_rival
from sremkit.bench.ensembles import Mean, backbones_to_train, keys_to_keep, mean_rows
from sremkit.bench.grid import cell_key, row_file, run_grid, scores_file, write_csv
from sremkit.bench.published import REAL_NOISE, add_published, noise_label, published_rsum
from sremkit.bench.tables import Table, bold, grouped, mean_and_deviation
from sremkit.config.recipes import (
    Recipe,
    TrainingSettings,
    load_recipe,
    recipe_files,
    recipe_from_table,
    recipe_to_toml,
)
from sremkit.config.settings import parse_assignment, suggestion
from sremkit.data.training_pairs import read_split
from sremkit.errors import UnknownNameError, UserError
from sremkit.evaluation.recall import RECALLS
from sremkit.methods import METHODS
from sremkit.models import BACKBONES

TRUSTED_IMAGES = 500  # for methods that need verified pairs and have no recipe
ADDED_NOISE = (0.2, 0.4, 0.6)
LABELS = ("backbone", "noise", "method", "seeds", "epochs")
SHOWN = {
    **{f"test_{key}": key.replace("/", " ") for key in RECALLS},
    "test_rsum": "R_sum",
    "against_rival": "against the best rival",
    "published_rsum": "published R_sum",
    "train_auroc": "AUROC",
    "crowd_auroc": "crowd",
    "noisy_gradient_ratio": "noisy gradients",
    "noisy_pull_ratio": "noisy pull",
    "filter_seconds_per_epoch": "filter s/epoch",
    "seconds_per_epoch": "train s/epoch",
    "seconds": "s",
    "peak_memory_mb": "MB",
    "trials": "trials",
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
        data: first part of the recipes' names, optionally with the path of the data: "f30k:/path".
        backbones: names; both members of a mean such as "saf+sgr" are cells.
        overrides: settings for every cell; see `method_recipe`.
    """
    data, source = split_data(data)
    cells = []
    for backbone, rate, method, seed in product(backbones_to_train(backbones), rates, methods, seeds):
        settings = [f"noise.rate={rate}", f"noise.protocol={protocol}", f"noise.seed={seed}"]
        settings += [f"training.seed={seed}", *source, *overrides]
        found = method_recipe(data, backbone, method, settings)
        labels = {"data": data, "backbone": backbone, "method": method, "rate": rate, "seed": seed}
        cells.append((labels | {"recipe": found.base, "adapted": found.adapted}, found.recipe))
    return cells


class MethodRecipe(NamedTuple):
    """The recipe of a cell and where it comes from."""

    recipe: Recipe
    base: str  # name of a shipped recipe
    adapted: bool  # the base is the recipe of another method or backbone


def method_recipe(data: str, backbone: str, method: str, overrides: Sequence[str]) -> MethodRecipe:
    """The recipe of a method on these data with this backbone.

    That is DATA-BACKBONE-METHOD, or DATA-METHOD if it has this backbone. A method without one takes data, model and
    schedule of SREM's recipe, and the defaults of its own options. If no recipe of the data names its backbone
    (`scenes-srem`), another backbone takes those model options that it has.

    Args:
        overrides: settings on top. `training.epochs` counts all epochs, warm-up included, so that every method trains
            for as many; if `training.warmup_epochs` is set as well, it counts the epochs after the warm-up, as in a
            recipe. CUDA graphs are left out for methods that do not support them.
    """
    base = _base_recipe(data, backbone, method)
    shipped = load_recipe(base)
    recipe = replace(shipped, name=f"{data}-{backbone}-{method}")
    if recipe.model["name"] != backbone:
        known = inspect.signature(BACKBONES[backbone]).parameters
        options = {key: value for key, value in recipe.model.items() if key in known}
        recipe = replace(recipe, model={**options, "name": backbone})
    if recipe.method["name"] != method:
        recipe = replace(recipe, method={"name": method})
        if METHODS[method].needs_trusted:
            recipe = replace(recipe, data=replace(recipe.data, trusted_images=TRUSTED_IMAGES))
    adapted = (recipe.model, recipe.method) != (shipped.model, shipped.method)
    settings = {".".join(key): value for key, value in map(parse_assignment, overrides)}
    total = settings.get("training.epochs")
    if isinstance(total, int) and total >= 0 and "training.warmup_epochs" not in settings:
        recipe = replace(recipe, training=with_total_epochs(recipe.training, total))
        overrides = [o for o in overrides if parse_assignment(o)[0] != ["training", "epochs"]]
    recipe = recipe_from_table(tomllib.loads(recipe_to_toml(recipe)), overrides)
    if recipe.training.cuda_graphs is True and not METHODS[method].supports_cuda_graphs:
        recipe = replace(recipe, training=replace(recipe.training, cuda_graphs=False))
    return MethodRecipe(recipe, base, adapted)


def with_total_epochs(training: TrainingSettings, total: int) -> TrainingSettings:
    """The same schedule in `total` epochs: warm-up and learning-rate decay keep their shares.

    A schedule with a warm-up keeps at least one epoch of it, because some methods learn nothing without.
    """
    share = training.warmup_epochs / (training.warmup_epochs + training.epochs)
    warmup = max(1, min(round(share * total), total - 1)) if training.warmup_epochs and total else 0
    epochs = total - warmup
    decays = training.decay_after < training.epochs
    decay = round(training.decay_after / training.epochs * epochs) if decays else epochs
    return replace(training, warmup_epochs=warmup, epochs=epochs, decay_after=decay)


def split_data(data: str) -> tuple[str, list[str]]:
    """Of "f30k:/path" the first part of recipes' names, and the override with the path of the data, if any."""
    name, _, source = data.partition(":")
    return name, [f"data.source={source}"] if source else []


def default_rates(data: str, added: Sequence[float] = ADDED_NOISE) -> list[float]:
    """The noise rates to add to these data ("f30k", "f30k:/path"): none where they are noisy already."""
    return [0.0] if split_data(data)[0] in REAL_NOISE else list(added)


def default_backbone(data: str) -> str:
    """The backbone of DATA-srem, where there is such a recipe, as for the scenes; otherwise the dual encoder."""
    name = f"{split_data(data)[0]}-srem"
    return load_recipe(name).model["name"] if name in recipe_files() else "dual"


def _base_recipe(data: str, backbone: str, method: str) -> str:
    """The shipped recipe that fits best: of this method and backbone, then of this backbone, then of these data."""
    for registry, name in ((BACKBONES, backbone), (METHODS, method)):
        registry[name]  # an unknown name is refused with a suggestion
    shipped = recipe_files()
    for name in (f"{data}-{backbone}-{method}", f"{data}-{method}", f"{data}-{backbone}-srem", f"{data}-srem"):
        if name in shipped and load_recipe(name).model["name"] == backbone:
            return name
    for name in (f"{data}-{method}", f"{data}-srem"):
        if name in shipped:
            return name
    raise UnknownNameError(_known_recipes(data, backbone))


def _known_recipes(data: str, backbone: str) -> str:
    """States that data and backbone have no recipes together, and which have."""
    backbones: dict[str, list[str]] = {}
    for name in recipe_files():
        known, _, rest = name.partition("-")
        if rest.endswith("-srem") or rest == "srem":
            backbones.setdefault(known, []).append(rest.removesuffix("-srem"))
    if data in backbones:
        there = ", ".join(backbones[data])
        return f"the data '{data}' have no recipes for the backbone '{backbone}'; they have for: {there}"
    return f"there are no data called '{data}' with recipes; {suggestion(data, backbones)}"


def run_methods(
    cells: Sequence[tuple[dict[str, Any], Recipe]], out: Path, *, means: Sequence[Mean] = (), jobs: int = 1
) -> list[dict[str, Any]]:
    """Run the cells, then the means; write `out` as CSV.

    Finished cells are kept in a folder of the same name with the suffix ".cells"; members of means with their scores.
    """
    folder = out.with_suffix(".cells")
    keep = keys_to_keep(means, folder)
    again = [k for k in keep if row_file(folder, k).exists() and not scores_file(folder, k).exists()]
    if again:
        print(f"{len(again)} finished cell(s) kept no scores to average and will run again", flush=True)
    recipes = {cell_key(recipe): recipe for _, recipe in cells}
    kept = {k for k in recipes if row_file(folder, k).exists()}.difference(again)
    _check_test_splits([recipe for key, recipe in recipes.items() if key not in kept])
    if kept:
        print(f"{len(kept)} of {len(recipes)} cells are finished already", flush=True)
    done = len(kept)

    def report(row: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        names = " ".join(str(row[key]) for key in ("backbone", "method", "rate", "seed"))
        scores = f"val {row['val_rsum']:.1f} (last {row['last_val_rsum']:.1f}), {row['seconds']:.0f} s"
        print(f"[{done}/{len(recipes)}] {names}: {scores}", flush=True)

    rows = run_grid(cells, folder, jobs=jobs, keep_scores=keep, on_row=report)
    if keep:
        print(f"averaging the scores of {len(means)} pairs of cells", flush=True)
    rows += mean_rows(means, folder)
    write_csv(rows, out)
    return rows


def _check_test_splits(recipes: Sequence[Recipe]) -> None:
    """Read each test split once before anything is trained: data may be missing, or their folds of unequal size."""
    for data in {repr(recipe.data): recipe.data for recipe in recipes}.values():
        images, folds = read_split(data, data.test_split).num_images, data.test_folds or 1
        if images % folds:
            raise UserError(
                f"data.test_folds is {folds}, but the {images} images of the split '{data.test_split}' cannot be "
                "split into that many folds of equal size"
            )


def with_recipes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of older files, which do not name their recipe: by data, backbone and method, if it is shipped."""
    shipped = recipe_files()
    names = [f"{row['data']}-{row['backbone']}-{row['method']}" for row in rows]
    return [{"recipe": name, **row} if name in shipped else row for name, row in zip(names, rows, strict=True)]


def methods_table(rows: Sequence[dict[str, Any]], *, title: str) -> Table:
    """Mean ± standard deviation over seeds; single models, ensembles and published numbers in separate sections."""
    gains = differences_to_best_rival(rows)
    rows = [{**row, "published_rsum": published_rsum(row), **_comparison(row, gains)} for row in rows]
    shown = {key: name for key, name in SHOWN.items() if any(row.get(key) is not None for row in rows)}
    table = Table(title, [*LABELS, *shown.values()], labels=3)
    singles = [row for row in rows if row.get("networks", 1) == 1]
    ensembles = [row for row in rows if row.get("networks", 1) > 1]
    table.add_section("single models", _lines(singles, shown))
    table.add_section("ensembles (mean of similarities)", _lines(ensembles, shown))
    table.notes += _notes(rows)
    for data in dict.fromkeys(row["data"] for row in rows):
        add_published(table, data, {row["rate"] for row in rows if row["data"] == data}, shown)
    return table


def _lines(rows: Sequence[dict[str, Any]], shown: dict[str, str]) -> list[list[str]]:
    lines = []
    for (backbone, rate, method), members in grouped(rows, "backbone", "rate", "method").items():
        cells = [_cell(members, key) for key in shown]
        noise = noise_label(members[0]["data"], rate)
        marked = f"{method} *" if members[0].get("adapted") else method
        epochs = ", ".join(dict.fromkeys(_epochs_label(member) for member in members))
        lines.append([backbone, noise, marked, str(len(members)), epochs, *cells])
    return lines


def _cell(members: Sequence[dict[str, Any]], key: str) -> str:
    first = members[0].get(key)
    if key in ("published_rsum", "against_rival", "trials"):  # the same for every seed
        return "-" if first is None or first == "" else str(first)
    text = mean_and_deviation([m[key] for m in members if m.get(key) is not None], key)
    gain = members[0].get("against_rival")
    return bold(text) if key == METRIC and gain is not None and gain.is_ahead else text


def _comparison(row: dict[str, Any], gains: dict[tuple, Difference]) -> dict[str, Any]:
    """The difference to the best rival, and the trials of the recipe, where they are known."""
    found = gains.get((row["data"], row["backbone"], row["rate"], row["method"]))
    return {"against_rival": found, "trials": None if row.get("adapted") else _trials(row.get("recipe"))}


@cache
def _trials(recipe: str | None) -> int | None:
    return None if recipe is None or recipe not in recipe_files() else load_recipe(recipe).provenance.trials


def _epochs_label(row: dict[str, Any]) -> str:
    """Epochs of warm-up and after it, "3+6"; without a warm-up "9"."""
    if row.get("epochs") is None:
        return "-"
    warmup = row.get("warmup_epochs")
    return f"{warmup}+{row['epochs'] - warmup}" if warmup else str(row["epochs"])


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader has to know about epochs, adapted recipes and larger ensembles."""
    notes = []
    epochs = {row["epochs"] for row in rows if row.get("epochs") is not None}
    if len(epochs) == 1:
        notes.append(f"Epochs: every method trained for {max(epochs)}, warm-up included.")
    elif epochs:
        notes.append(f"Epochs, warm-up + rest, are those of each recipe: {min(epochs)} to {max(epochs)}.")
    adapted: dict[str, list[str]] = {}
    for row in rows:
        if row.get("adapted"):
            adapted.setdefault(row["recipe"], []).append(f"{row['backbone']} {row['method']}")
    for recipe, names in adapted.items():
        notes.append(
            f"* No recipe of its own ({', '.join(dict.fromkeys(names))}): data, schedule and batch size are those of "
            f"{recipe}, other options the defaults."
        )
    if any(row.get("against_rival") for row in rows):
        notes.append(NOTE)
    if any(row.get("trials") is not None for row in rows):
        notes.append("Trials: settings tried on the validation split before those of the recipe were chosen.")
    larger = [row for row in rows if row.get("networks", 1) > 2]
    if larger:
        named = dict.fromkeys(f"{row['backbone']} {row['method']} ({row['networks']})" for row in larger)
        notes.append(f"Ensembles of more than two networks: {', '.join(named)}.")
    return notes
