"""Which mismatches a method's filter removes: scenes with shuffled captions, and captions that are wrong in one detail.

    python -m benchmarks.filter_scenes --methods infonce,rcl,srem,srem-plus --seeds 3

A shuffled caption describes another image. A subtle mismatch describes its own image but for one attribute or
relation. Each method trains on scenes with both types and is validated on clean ones. Then the ground truth is
joined: how its best model ranks each type against correct pairs, and each type's share of the training signal in the
last epoch. `--without` removes mismatches by the ground truth before training, as an ideal filter would. Rows of the
CSV file whose key exists are not run again; other rows of the file are kept.
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

from benchmarks.commands import make_parser, run_command
from benchmarks.mismatch_types import SHUFFLED, SUBTLE, TYPES, TypeObserver, aurocs, types_of_pairs
from sremkit.bench.grid import cell_key, write_csv
from sremkit.bench.tables import Table, grouped, mean_and_deviation
from sremkit.config.recipes import Recipe, load_recipe
from sremkit.config.settings import suggestion
from sremkit.data.generated.scenes import mismatched_scenes
from sremkit.errors import UserError
from sremkit.evaluation.scoring import in_batch_scores
from sremkit.experiment import Prepared, make_trainer, prepare
from sremkit.training.reporters import HistoryReporter

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
    "kept_correct": "kept correct",
    "kept_shuffled": "kept shuffled",
    "kept_subtle": "kept subtle",
    "pull_shuffled": "pull shuffled",
    "pull_subtle": "pull subtle",
}


@dataclass(frozen=True)
class Mismatches:
    """The mismatches of the training pairs, and which of them an ideal filter removes."""

    rate: float = 0.4
    subtle_share: float = 0.5  # of the mismatches
    without: str | None = None  # "shuffled", or "wrong" for both types

    @property
    def key(self) -> str:
        left_out = "" if self.without is None else f"-{self.without}"
        return f"{self.rate:g}-{self.subtle_share:g}{left_out}"

    def used(self, pair_type: np.ndarray) -> np.ndarray:
        """The indices of the pairs to train on."""
        dropped = {None: (), "shuffled": (SHUFFLED,), "wrong": (SHUFFLED, SUBTLE)}[self.without]
        return np.flatnonzero(~np.isin(pair_type, dropped))


def kept(observer: TypeObserver, last: dict[str, Any]) -> dict[str, Any]:
    """How much of each type the method keeps: the share that it selects, or else the mean weight that it gives.

    Args:
        last: row of the last epoch.

    Returns:
        "kept_by", "kept_correct" and so on, and AUROCs of the weights. Empty for a method that reports neither.
    """
    by = next((name for name in ("selected", "weight") if f"{name}_correct" in last), None)
    row = {} if by is None else {"kept_by": by} | {f"kept_{t}": last[f"{by}_{t}"] for t in TYPES}
    if "weight_correct" in last:
        found = aurocs(observer.weight.cpu().numpy(), observer.pair_type.cpu().numpy())
        row |= {f"weight_{metric}": value for metric, value in found.items()}
    return row


def filter_recipe(method: str, backbone: str, seed: int, overrides: Sequence[str] = ()) -> Recipe:
    """The method's recipe for scenes with this backbone; one seed for scenes, mismatches and training."""
    if backbone not in MODELS:
        raise UserError(f"there are no settings for the backbone '{backbone}'; {suggestion(backbone, MODELS)}")
    settings = ["noise.rate=0", f"data.options.seed={seed}", f"training.seed={seed}"]
    recipe = load_recipe(f"scenes-{method}", [*MODELS[backbone], *settings, *overrides])
    if recipe.data.trusted_images > 0:
        raise UserError(f"'{method}' needs trusted pairs, which this benchmark does not set aside; leave it out")
    return recipe


def prepare_mismatched(recipe: Recipe, mismatches: Mismatches) -> tuple[Prepared, np.ndarray]:
    """The recipe's scenes with mismatches in the training pairs, and the type of each training pair."""
    prepared = prepare(recipe)
    options = {**recipe.data.options, **recipe.data.train_options}
    train, truth = mismatched_scenes(
        options["num_scenes"],
        split=recipe.data.train_split,
        seed=options["seed"],
        rate=mismatches.rate,
        subtle_share=mismatches.subtle_share,
    )
    return replace(prepared, train=train), types_of_pairs(truth)


def run_cell(recipe: Recipe, mismatches: Mismatches) -> dict[str, Any]:
    """Train one method; its best model on the validation split scores all pairs, removed ones as well."""
    started = time.monotonic()
    prepared, pair_type = prepare_mismatched(recipe, mismatches)
    used = mismatches.used(pair_type)
    history: list[dict[str, Any]] = []
    trained = replace(prepared, train=prepared.train.select(used))
    observer = TypeObserver(pair_type[used])
    trainer = make_trainer(trained, HistoryReporter(history), observer=observer)
    trainer.run()
    best, last = max(history, key=lambda row: row["val/rsum"]), history[-1]
    assert trainer.best_weights is not None
    prepared.matcher.load_state_dict(trainer.best_weights)
    scores = in_batch_scores(prepared.matcher, prepared.train, prepared.vocabulary)
    return {
        "pairs": len(pair_type),
        "val_images": prepared.val.num_images,
        "batch_size": recipe.training.batch_size,
        "share_shuffled": float((pair_type == SHUFFLED).mean()),
        "share_subtle": float((pair_type == SUBTLE).mean()),
        "val_rsum": best["val/rsum"],
        "last_val_rsum": last["val/rsum"],
        "best_epoch": best["epoch"] + 1,
        "epochs": len(history),
        "warmup_epochs": sum(row["warmup"] for row in history),
        **aurocs(scores.match, pair_type),
        **kept(observer, last),
        **{f"pull_{name}": last.get(f"pull_{name}") for name in TYPES},
        "seconds": time.monotonic() - started,
    }


def run_bench(
    cells: Sequence[tuple[dict[str, Any], Recipe]], out: Path, mismatches: Mismatches
) -> list[dict[str, Any]]:
    """Run the cells that `out` has no row of; return the rows of all cells, with numbers as text."""
    rows = _read(out)
    keys = []
    for labels, recipe in cells:
        key = f"{cell_key(recipe)}-{mismatches.key}"
        keys.append(key)
        if key not in rows:
            rows[key] = {"key": key, **labels, **asdict(mismatches), **run_cell(recipe, mismatches)}
            # After each cell, so that an interrupted benchmark continues.
            write_csv(rows.values(), out)
            _report(rows[key])
    rows = _read(out)
    return [rows[key] for key in keys]


def filter_table(rows: Sequence[dict[str, str]]) -> Table:
    """Mean ± standard deviation over seeds, a section for each backbone."""
    table = Table("mismatches kept by filters on scenes", ["method", "seeds", *SHOWN.values()])
    for (backbone,), of_backbone in grouped(rows, "backbone").items():
        lines = []
        for (method,), members in grouped(of_backbone, "method").items():
            cells = [mean_and_deviation([float(m[key]) for m in members if m.get(key)], key) for key in SHOWN]
            lines.append([method, str(len(members)), *cells])
        table.add_section(backbone, lines)
    table.notes.append(
        "kept: share of pairs that the method selects, or their mean weight; - where it reports neither. "
        "pull: share of the gradient that pulls pairs together. Both in the last epoch."
    )
    return table


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if "key" not in (reader.fieldnames or ()):
            raise UserError(f"{path} is not a file of this benchmark, as it has no column 'key'; name another one")
        return {row["key"]: row for row in reader}


def _report(row: dict[str, Any]) -> None:
    print(
        f"{row['backbone']} {row['method']} {row['seed']}: "
        f"val {row['val_rsum']:.1f} (last {row['last_val_rsum']:.1f}), AUROC shuffled {row['shuffled_auroc']:.3f}, "
        f"subtle {row['subtle_auroc']:.3f}, {row['seconds']:.0f} s",
        flush=True,
    )


def run(args: argparse.Namespace) -> None:
    cells = [
        ({"backbone": b, "method": m, "seed": seed}, filter_recipe(m, b, seed, args.overrides))
        for b in args.backbone.split(",")
        for seed in range(args.seeds)
        for m in args.methods.split(",")
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    mismatches = Mismatches(args.rate, args.subtle_share, args.without)
    rows = run_bench(cells, args.out, mismatches)
    print(f"\n{filter_table(rows).as_markdown()}\nwritten to {args.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("filter_scenes", __doc__)
    parser.add_argument("--methods", default="infonce,rcl,srem,srem-plus", help="with a recipe scenes-METHOD")
    parser.add_argument("--backbone", default="vse-infty", help=f"comma-separated: {', '.join(MODELS)}")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--rate", type=float, default=0.4, help="share of mismatches")
    parser.add_argument("--subtle-share", type=float, default=0.5, help="share of subtle ones among them")
    parser.add_argument("--without", choices=["shuffled", "wrong"], help="mismatches to remove by the truth")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="setting of every run",
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/filter-scenes.csv"), help="CSV file")
    return run_command(parser, run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
