"""Runs at the paper's sizes: generated collections, several runs at a time, within a time budget, to be continued.

    python -m benchmarks.paper_scale --data data/f30k_precomp -o runs/paper --jobs 3 --minutes 9
    python -m benchmarks.paper_scale --cells srem:0.4:0:sgr rcl:0.4:0:sgr
    python -m benchmarks.paper_scale --images 200 --regions 6 --dim 32 --set training.epochs=2   # to try it
    python -m benchmarks.paper_scale -o runs/paper --collect   # table and figures of finished cells; trains nothing

A cell is METHOD:NOISE:SEED:BACKBONE, trained by the recipe of `srem bench methods`. The collection is written if the
folder does not hold it. When the time is over, trainings save their state and stop; the next call goes on with them and
with the cells that were not begun. The folder receives `rows.csv`, `table.md`, the runs themselves and figures: R_sum,
mismatches among the selected pairs (noise accumulation) and the share of the gradient that comes from mismatches over
epochs, and histograms of energies. Results on generated data are not results on Flickr30K.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.commands import make_parser, run_command
from sremkit.bench.figures import STAGES, TEN_COLORS, draw_energies, mean_curve, save_figure
from sremkit.bench.grid import write_csv
from sremkit.bench.methods import method_recipe
from sremkit.bench.tables import Table
from sremkit.config.recipes import load_recipe, recipe_to_toml
from sremkit.data.generated.concepts import COLLECTIONS, collection_like, write_collection
from sremkit.data.training_pairs import read_split
from sremkit.errors import UserError
from sremkit.evaluation import detection_metrics, retrieval_recall_folds
from sremkit.evaluation.scoring import in_batch_scores, score_matrix
from sremkit.experiment import load_best, prepare, train, with_whole_paths
from sremkit.extras import require
from sremkit.io import atomic_write, read_json
from sremkit.reports.figures import new_axes
from sremkit.training.diagnostics import StoppedError
from sremkit.training.run_folder import RunFolder
from sremkit.training.step import autocast

STOP_SECONDS = 120  # for a training to save its state
ENERGIES = ("energy_i2t", "energy_t2i")
PANELS = {"val/rsum": "validation R_sum", "selected_wrong": "wrong among selected", "gradients": "noisy gradients"}
COLUMNS = {
    "best_rsum": ("best R_sum", ".1f"),
    "last_rsum": ("last", ".1f"),
    "largest_fall": ("largest fall", ".1%"),
    "test_rsum": ("test R_sum", ".1f"),
    "auroc": ("AUROC", ".3f"),
    "selected_wrong": ("wrong among selected", ".2%"),
    "noisy_gradients": ("noisy gradients, last", ".2%"),
    "most_noisy_gradients": ("most", ".2%"),
    "warmup_epochs": ("warm-up epochs", "d"),
    "epochs": ("epochs", "d"),
    "minutes": ("minutes", ".1f"),
}


class Cell(NamedTuple):
    """One run."""

    method: str
    rate: float
    seed: int
    backbone: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        try:
            method, rate, seed, backbone = text.split(":")
            return cls(method, float(rate), int(seed), backbone)
        except ValueError:
            raise UserError(f"a cell is METHOD:NOISE:SEED:BACKBONE, such as srem:0.4:0:sgr; got '{text}'") from None

    def __str__(self) -> str:
        return f"{self.method}:{self.rate:g}:{self.seed}:{self.backbone}"

    def folder(self, out: Path) -> Path:
        return out / "runs" / str(self).replace(":", "_")


#: In the order of importance, for a budget that does not suffice for all.
CELLS = (
    *(Cell(method, rate, 0, "sgr") for rate in (0.4, 0.6)
      for method in ("srem", "rcl", "infonce", "decl", "hinge", "srem-plus")),
    *(Cell(method, 0.2, 0, "sgr") for method in ("srem", "rcl", "infonce")),
    *(Cell(method, 0.4, 0, "saf") for method in ("srem", "rcl", "infonce")),
    *(Cell(method, rate, seed, "sgr") for seed in (1, 2) for rate in (0.4, 0.6) for method in ("srem", "rcl", "decl")),
)  # fmt: skip


def prepare_cells(cells: Sequence[Cell], like: str, source: Path, out: Path, overrides: Sequence[str]) -> list[Path]:
    """The folder of each cell, with its recipe in it; one with another recipe is refused."""
    folders = []
    for cell in cells:
        settings = [f"data.source={json.dumps(str(source))}", f"noise.rate={cell.rate}", f"noise.seed={cell.seed}"]
        settings += [f"training.seed={cell.seed}", "training.keep_statistics=1000"]
        recipe = method_recipe(like, cell.backbone, cell.method, [*settings, *overrides]).recipe
        text = recipe_to_toml(with_whole_paths(recipe))
        folder = cell.folder(out)
        file = folder / "recipe.toml"
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise UserError(f"{folder} holds a run with other settings; name another folder with --out")
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(file, text)
        folders.append(folder)
    return folders


def run_cells(
    folders: Sequence[Path], *, jobs: int, seconds: float, start: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    """Run the unfinished cells, `jobs` at a time; when the time is over the running ones save their state and stop."""
    waiting = [folder for folder in folders if not (folder / "row.json").exists()]
    running: dict[Path, subprocess.Popen[bytes]] = {}
    deadline = time.monotonic() + seconds
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < jobs:
                folder = waiting.pop(0)
                running[folder] = start(folder)
                print(f"{folder.name}: started", flush=True)
            time.sleep(0.2)
            for folder, process in list(running.items()):
                if process.poll() is not None:
                    del running[folder]
                    state = "finished" if (folder / "row.json").exists() else f"failed, see {folder / 'log.txt'}"
                    print(f"{folder.name}: {state}", flush=True)
    finally:
        for process in running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for folder, process in running.items():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            print(f"{folder.name}: stopped, to be continued", flush=True)


def start_cell(folder: Path) -> subprocess.Popen[bytes]:
    """A process that trains the cell of this folder."""
    command = [sys.executable, "-m", "benchmarks.paper_scale", "--run-cell", str(folder)]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def run_cell(folder: Path) -> int:
    """Train the cell to its end, or go on with it, and write its row; 3 if it was stopped."""
    recipe = load_recipe(folder / "recipe.toml")
    run = RunFolder(folder / "run")
    prepared = prepare(recipe)
    if not run.config.exists():
        run = RunFolder.create(run.path, config=recipe_to_toml(recipe))
    try:
        with run.locked():
            record = train(prepared, run, trackers=(), report=False)
    except StoppedError as stopped:
        print(stopped, flush=True)
        return 3
    history = run.read_metrics()
    matcher, vocabulary = load_best(run)
    device = prepared.process.device
    matcher.to(device)
    with autocast(record["execution"]["precision"], device):
        test = read_split(recipe.data, recipe.data.test_split)
        scores = score_matrix(matcher, test, vocabulary)
        match = in_batch_scores(matcher, prepared.train, vocabulary).match
    row = {
        **history_facts(history),
        "test_rsum": retrieval_recall_folds(scores, test.image_of_text, folds=recipe.data.test_folds or 1)["rsum"],
        "auroc": detection_metrics(prepared.is_noisy, match)["auroc"] if prepared.is_noisy.any() else None,
        "minutes": record["seconds"] / 60,
        "device": record["environment"]["device"],
        **record["execution"],
        "pairs": record["pairs"],
    }
    np.save(folder / "is_noisy.npy", prepared.is_noisy)
    atomic_write(folder / "row.json", json.dumps(row))
    return 0


def history_facts(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a run's epochs. The largest fall is of R_sum between two epochs, from 1 % of 600 on."""
    rsum = [row["val/rsum"] for row in history]
    last = history[-1]
    gradients = [g for row in history if not row["warmup"] and (g := gradient_ratio(row)) is not None]
    return {
        "best_rsum": max(rsum),
        "last_rsum": rsum[-1],
        "largest_fall": max([0.0, *(1 - after / before for before, after in pairwise(rsum) if before >= 6)]),
        "selected_wrong": last.get("selected_wrong"),
        "noisy_gradients": gradients[-1] if gradients else None,
        "most_noisy_gradients": max(gradients, default=None),
        "warmup_epochs": sum(bool(row["warmup"]) for row in history),
        "epochs": len(history),
    }


def gradient_ratio(row: dict[str, Any]) -> float | None:
    """The share of the gradient that comes from mismatches: of the ranking where a method has one, else of the pull."""
    ratio = row.get("noisy_gradient_ratio", row.get("noisy_pull_ratio"))
    return None if ratio is None else float(ratio)


def scale_table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """One line per cell."""
    table = Table(title, ["method", "noise", "seed", "backbone", *(name for name, _ in COLUMNS.values())], labels=4)
    lines = []
    for row in rows:
        numbers = [("" if row.get(key) is None else format(row[key], form)) for key, (_, form) in COLUMNS.items()]
        lines.append([row["method"], f"{row['rate']:.0%}", str(row["seed"]), row["backbone"], *numbers])
    table.add_section("validation R_sum, and what the evaluation knows about the training pairs", lines)
    return table


def draw_histories(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """R_sum, mismatches among the selected, and noisy gradients over epochs, mean over seeds, a line per method."""
    figure, axes = new_axes(1, len(PANELS), width=4.6 * len(PANELS), height=3.8)
    for method, color in zip(dict.fromkeys(row["method"] for row in rows), TEN_COLORS, strict=False):
        histories = [[_with_gradients(epoch) for epoch in row["history"]] for row in rows if row["method"] == method]
        for axis, key in zip(axes, PANELS, strict=True):
            if curve := mean_curve(histories, key):
                axis.plot(*zip(*curve, strict=True), "-", color=color, linewidth=1.6, label=method)
    for axis, title in zip(axes, PANELS.values(), strict=True):
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("epoch")
        axis.set_ylim(0, None)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=6, fontsize=9)
    return save_figure(figure, stem)


def _with_gradients(epoch: dict[str, Any]) -> dict[str, Any]:
    ratio = gradient_ratio(epoch)
    return epoch if ratio is None else {**epoch, "gradients": ratio}


def stage_energies(folder: Path) -> dict[float, np.ndarray]:
    """The mean energy of each training pair at the stages of a run, of a method that reports energies."""
    run = RunFolder(folder / "run")
    epochs = len(run.read_metrics())
    found = {}
    for stage in STAGES:
        file = run.statistics / f"epoch-{max(round(stage * epochs) - 1, 0):03d}.parquet"
        if stage == 0 or not file.exists():  # statistics are of trained epochs
            continue
        parquet = require("pyarrow.parquet", extra="train", purpose="read per-pair statistics")
        table = parquet.read_table(file)
        if set(ENERGIES) <= set(table.column_names):
            energies = np.mean([table[name].to_numpy() for name in ENERGIES], axis=0)
            found[stage] = np.nan_to_num(energies, nan=float(np.nanmean(energies)))  # a pair that no batch held
    return found


def collect(cells: Sequence[Cell], folders: Sequence[Path], out: Path, title: str) -> list[dict[str, Any]]:
    """Write table and figures of the finished cells; returns their rows."""
    rows = []
    for cell, folder in zip(cells, folders, strict=True):
        if not (folder / "row.json").exists():
            continue
        history = RunFolder(folder / "run").read_metrics()
        rows.append({**cell._asdict(), **read_json(folder / "row.json"), "history": history})
        if energies := stage_energies(folder):
            draw_energies(energies, np.load(folder / "is_noisy.npy"), out / f"energies-{folder.name}")
    if not rows:
        return rows
    write_csv(rows, out / "rows.csv")
    scale_table(rows, title).write(out / "table.md")
    for backbone, rate in dict.fromkeys((row["backbone"], row["rate"]) for row in rows):
        chosen = [row for row in rows if (row["backbone"], row["rate"]) == (backbone, rate)]
        draw_histories(chosen, out / f"epochs-{backbone}-{rate:g}")
    return rows


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("paper_scale", __doc__)
    parser.add_argument("--like", choices=list(COLLECTIONS), default="f30k", help="whose sizes and recipes")
    parser.add_argument("--data", type=Path, help="folder of the generated collection (default: OUT/data)")
    for name, meaning in (("images", "training images"), ("regions", "regions of an image"), ("dim", "their width"),
                          ("concepts", "concepts")):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, help=f"number of {meaning}, if other than the collection's")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of the concept frequencies; 0: uniform")
    parser.add_argument("--cells", nargs="+", metavar="CELL", help="METHOD:NOISE:SEED:BACKBONE (default: the paper's)")
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=9.0, help="time budget of this call, without the collection")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change all recipes"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/paper-scale"), help="folder to write")
    parser.add_argument("--collect", action="store_true", help="write table and figures of the finished cells only")
    parser.add_argument("--run-cell", type=Path, help=argparse.SUPPRESS)
    return parser


def run(args: argparse.Namespace) -> int:
    if args.run_cell is not None:
        return run_cell(args.run_cell)
    cells = [Cell.parse(text) for text in args.cells] if args.cells else list(CELLS)
    sizes = {"num_regions": args.regions, "dim": args.dim, "num_concepts": args.concepts, "zipf": args.zipf}
    collection = collection_like(args.like, images=args.images, **sizes)
    if args.collect:
        folders = [cell.folder(args.out) for cell in cells]
    else:
        source = args.data or args.out / "data"
        write_collection(collection, source)
        folders = prepare_cells(cells, args.like, source, args.out, args.overrides)
        run_cells(folders, jobs=args.jobs, seconds=60 * args.minutes, start=start_cell)
    title = f"generated collection of {args.like}'s layout, {collection.splits['train']:,} images, Zipf {args.zipf:g}"
    rows = collect(cells, folders, args.out, title)
    if rows:
        print(scale_table(rows, title).as_text())
    print(f"\n{len(rows)} of {len(cells)} cells are finished; written to {args.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
