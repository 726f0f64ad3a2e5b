"""Does a method's filter see more than the obvious? Scenes with shuffled captions, and captions wrong in one detail.

    python -m sremkit.bench.filter_scenes --methods infonce,rcl,srem,srem-plus --seeds 3

A shuffled caption is about another picture. A subtle one is about its own, but for one attribute or relation: to
keep it costs little and teaches something wrong. Each method trains on scenes with both kinds, is validated on clean
ones, and then the truth is joined: how its best model ranks each kind against right pairs, and what each kind had of
the training signal in the last epoch. With `--without` such pairs never get into the training: what a filter that
knew the truth would reach. A row whose key stands in the CSV file already is not run again, and other
rows of that file are kept.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.bench.grid import cell_key, write_csv
from sremkit.bench.kinds import KINDS, SHUFFLED, SUBTLE, KindWatch, aurocs, kind_of_pairs
from sremkit.bench.methods import mean_and_deviation
from sremkit.bench.tables import Table
from sremkit.data.scenes import mismatched_scenes
from sremkit.errors import UserError
from sremkit.evaluation.judging import judge_pairs
from sremkit.experiment import Prepared, make_trainer, prepare
from sremkit.methods import Method
from sremkit.methods.srem_plus import SREMPlus
from sremkit.recipes import Recipe, load_recipe
from sremkit.settings import suggestion
from sremkit.training.progress import Silent

MODELS = {
    "vse-infty": (),  # as the recipes have it
    "scan-t2i": ("model={name='scan-t2i', embed_size=64, word_dim=32}",),
    "saf": ("model={name='saf', embed_size=64, word_dim=32, sim_dim=32}",),
}
SHOWN = {
    "val_rsum": "validation R_sum",
    "last_val_rsum": "last epoch",
    "shuffled_auroc": "AUROC shuffled",
    "subtle_auroc": "AUROC subtle",
    "kept_right": "kept right",
    "kept_shuffled": "kept shuffled",
    "kept_subtle": "kept subtle",
    "pull_shuffled": "pull shuffled",
    "pull_subtle": "pull subtle",
}


@dataclass(frozen=True)
class Mismatches:
    """What is wrong with the training pairs, and which of them a filter that knows the truth leaves out."""

    rate: float = 0.4
    subtle_share: float = 0.5  # among the wrong ones
    without: str | None = None  # "shuffled", or "wrong" for both kinds

    @property
    def key(self) -> str:
        left_out = "" if self.without is None else f"-{self.without}"
        return f"{self.rate:g}-{self.subtle_share:g}{left_out}"

    def used(self, kind: np.ndarray) -> np.ndarray:
        """The numbers of the pairs that are trained on."""
        dropped = {None: (), "shuffled": (SHUFFLED,), "wrong": (SHUFFLED, SUBTLE)}[self.without]
        return np.flatnonzero(~np.isin(kind, dropped))


def kept(method: Method, last: dict[str, Any], kind: np.ndarray) -> dict[str, Any]:
    """How much of each kind the method lets pass: the share that it selects, or the mean of what it believes.

    Args:
        last: row of the last epoch.

    Returns:
        "kept_right" and so on, and "kept_by"; nothing for a method that keeps every pair.
    """
    if "selected_right" in last:
        return {"kept_by": "selection"} | {f"kept_{name}": last[f"selected_{name}"] for name in KINDS}
    if not isinstance(method, SREMPlus):
        return {}
    belief = method.belief.cpu().numpy()
    row: dict[str, Any] = {"kept_by": "belief"}
    for number, name in enumerate(KINDS):
        of_kind = belief[kind == number]
        row[f"kept_{name}"] = float(of_kind.mean()) if len(of_kind) else float("nan")
    return row | {f"belief_{name}": value for name, value in aurocs(belief, kind).items()}


def filter_recipe(method: str, backbone: str, seed: int, overrides: Sequence[str] = ()) -> Recipe:
    """The method's recipe for scenes, with this backbone; the seed is that of scenes, mismatches and training."""
    if backbone not in MODELS:
        raise UserError(
            f"there are no settings for the backbone '{backbone}'; {suggestion(backbone, MODELS)}"
        )
    settings = ["noise.rate=0", f"data.options.seed={seed}", f"training.seed={seed}"]
    recipe = load_recipe(f"scenes-{method}", [*MODELS[backbone], *settings, *overrides])
    if recipe.data.trusted_images > 0:
        raise UserError(
            f"'{method}' wants pairs set aside that are known to be right, and here are none; leave it out"
        )
    return recipe


def prepare_mismatched(recipe: Recipe, mismatches: Mismatches) -> tuple[Prepared, np.ndarray]:
    """The recipe's scenes with mismatches in the training pairs, and the kind of each of these."""
    prepared = prepare(recipe)
    options = {**recipe.data.options, **recipe.data.train_options}
    train, truth = mismatched_scenes(
        options["num_scenes"],
        split=recipe.data.train_split,
        seed=options["seed"],
        rate=mismatches.rate,
        subtle_share=mismatches.subtle_share,
    )
    return replace(prepared, train=train), kind_of_pairs(truth)


def run_cell(recipe: Recipe, mismatches: Mismatches) -> dict[str, Any]:
    """Train one method; its best model of the validation judges all pairs, those left out as well."""
    started = time.monotonic()
    prepared, kind = prepare_mismatched(recipe, mismatches)
    used = mismatches.used(kind)
    history: list[dict[str, Any]] = []
    trained = replace(prepared, train=prepared.train.select(used))
    trainer = make_trainer(trained, Silent(history), observer=KindWatch(kind[used]))
    trainer.run()
    best, last = max(history, key=lambda row: row["val/rsum"]), history[-1]
    assert trainer.best_weights is not None
    prepared.matcher.load_state_dict(trainer.best_weights)
    judged = judge_pairs(prepared.matcher, prepared.train, prepared.vocabulary)
    return {
        "pairs": len(kind),
        "val_images": prepared.val.num_images,
        "batch_size": recipe.training.batch_size,
        "share_shuffled": float((kind == SHUFFLED).mean()),
        "share_subtle": float((kind == SUBTLE).mean()),
        "val_rsum": best["val/rsum"],
        "last_val_rsum": last["val/rsum"],
        "best_epoch": best["epoch"] + 1,
        "epochs": len(history),
        "warmup_epochs": sum(row["warmup"] for row in history),
        **aurocs(judged.match, kind),
        **kept(prepared.method, last, kind[used]),
        **{f"pull_{name}": last.get(f"pull_{name}") for name in KINDS},
        "seconds": time.monotonic() - started,
    }


def run_bench(
    cells: Sequence[tuple[dict[str, Any], Recipe]], out: Path, mismatches: Mismatches
) -> list[dict[str, Any]]:
    """Run the cells that `out` has no row of; returns the rows of all cells, with numbers as text."""
    rows = _read(out)
    keys = []
    for labels, recipe in cells:
        key = f"{cell_key(recipe)}-{mismatches.key}"
        keys.append(key)
        if key not in rows:
            rows[key] = {"key": key, **labels, **asdict(mismatches), **run_cell(recipe, mismatches)}
            # Whole after each cell: a bench that was stopped goes on where it stood.
            write_csv(rows.values(), out)
            _tell(rows[key])
    rows = _read(out)
    return [rows[key] for key in keys]


def filter_table(rows: Sequence[dict[str, str]]) -> Table:
    """Mean ± deviation over seeds, a section for each backbone."""
    table = Table("what filters see in scenes", ["method", "seeds", *SHOWN.values()])
    for backbone in dict.fromkeys(row["backbone"] for row in rows):
        groups: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            if row["backbone"] == backbone:
                groups.setdefault(row["method"], []).append(row)
        lines = []
        for method, members in groups.items():
            cells = [mean_and_deviation([float(m[key]) for m in members if m.get(key)], key) for key in SHOWN]
            lines.append([method, str(len(members)), *cells])
        table.add_section(backbone, lines)
    table.notes.append(
        "kept: share that is selected (srem), mean belief (srem-plus), - where every pair is kept; "
        "pull: share of what pulls pairs together. Both of the last epoch."
    )
    return table


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if "key" not in (reader.fieldnames or ()):
            raise UserError(f"{path} is no file of this bench, as it has no column 'key'; name another one")
        return {row["key"]: row for row in reader}


def _tell(row: dict[str, Any]) -> None:
    print(
        f"{row['backbone']} {row['method']} {row['seed']}: "
        f"val {row['val_rsum']:.1f} (last {row['last_val_rsum']:.1f}), AUROC shuffled {row['shuffled_auroc']:.3f}, "
        f"subtle {row['subtle_auroc']:.3f}, {row['seconds']:.0f} s",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sremkit.bench.filter_scenes",
        description=__doc__.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--methods", default="infonce,rcl,srem,srem-plus", help="with a recipe scenes-METHOD")
    parser.add_argument("--backbones", default="vse-infty", help=f"out of {', '.join(MODELS)}")
    parser.add_argument("--seeds", type=int, default=3, help="how many; they count from 0")
    parser.add_argument("--rate", type=float, default=0.4, help="share of wrong pairs")
    parser.add_argument("--subtle-share", type=float, default=0.5, help="share of subtle ones among them")
    parser.add_argument("--without", choices=["shuffled", "wrong"], help="pairs to leave out, by the truth")
    parser.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="for every cell"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/filter-scenes.csv"), help="CSV file")
    options = parser.parse_args(arguments)
    try:
        cells = [
            ({"backbone": b, "method": m, "seed": seed}, filter_recipe(m, b, seed, options.overrides))
            for b in options.backbones.split(",")
            for seed in range(options.seeds)
            for m in options.methods.split(",")
        ]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        mismatches = Mismatches(options.rate, options.subtle_share, options.without)
        rows = run_bench(cells, options.out, mismatches)
    except UserError as problem:
        parser.exit(2, f"{problem}\n")
    print(f"\n{filter_table(rows).as_markdown()}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
