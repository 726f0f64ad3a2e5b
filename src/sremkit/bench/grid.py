"""A grid of runs: one cell per recipe, optionally several at a time; finished cells are kept.

The key of a cell is the hash of its resolved recipe. Its row is written when it is finished, so an interrupted grid
continues where it stopped, and a larger grid computes only the new cells. The test scores of a cell are kept only on
request and weights never, so a finished cell whose scores are needed later runs again.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from sremkit.config.aliases import table_for_hashing
from sremkit.config.recipes import DataSettings, Recipe, recipe_to_toml
from sremkit.data.pairs import Pairs
from sremkit.data.training_pairs import read_split, resolve_source
from sremkit.errors import UserError
from sremkit.evaluation import detection_metrics, retrieval_recall_folds
from sremkit.evaluation.detection import CROWD_FILE, crowd_agreement
from sremkit.evaluation.noise_observer import DivisionObserver
from sremkit.evaluation.scoring import in_batch_scores, score_matrix
from sremkit.experiment import (
    Prepared,
    describe_noise,
    make_batches,
    make_trainer,
    pairs_for_model,
    peak_memory_mb,
    pixel_reading,
    prepare,
)
from sremkit.io import atomic_write, digest, read_json
from sremkit.methods import METHODS
from sremkit.models import Matcher
from sremkit.training.reporters import HistoryReporter
from sremkit.training.trainer import Trainer
from sremkit.worker_processes import exit_with_parent

DIVISION = ("division_precision", "division_recall", "division_auroc", "rematched_right")
#: Columns that every row of a table of methods has.
ROW_LABELS = ("data", "backbone", "method", "rate")
NUMBERS = {"rate", "seed", "val_rsum", "networks", "epochs", "warmup_epochs", "train_auroc", "crowd_auroc",
           "noisy_gradient_ratio", "noisy_pull_ratio", "filter_seconds_per_epoch", "seconds_per_epoch", "seconds",
           "peak_memory_mb"}  # fmt: skip
#: Settings that are newer than the keys of finished cells, with the value that changes nothing.
NEWER_SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"pixel_cache": "auto"},
    "training": {"min_crop_area": 1.0, "flip": 0.0},
}

P = ParamSpec("P")
R = TypeVar("R")
#: Environment variables of the fork server, which starts with the first grid of several jobs.
_server_environment: dict[str, str] | None = None
RunCell = Callable[[Recipe, int | None, Path | None], dict[str, Any]]


def cell_key(recipe: Recipe) -> str:
    """The key of a cell. It depends on the settings, not on their order or the recipe's name."""
    settings = tomllib.loads(recipe_to_toml(recipe))
    del settings["name"]
    training, on_gpu = settings["training"], _runs_on_gpu(recipe.training.device)
    # "auto" has the key of the default before it. In bf16 a run is another one; compiled or captured it is not.
    for name in ("compile", "cuda_graphs"):
        if training[name] == "auto":
            training[name] = False
    if training["precision"] == "auto" and (not on_gpu or training["deterministic"]):
        training["precision"] = "float32"
    if not training["deterministic"]:
        del training["deterministic"]  # keys are older than this setting
    if training["precision"] not in ("bf16", "auto") or not training["float32_steps"]:
        del training["float32_steps"]  # has no effect, and keys are older than this setting
    if not METHODS[recipe.method["name"]].monitors_warmup:
        training["adaptive_warmup"] = False  # has no effect, and this was the default
    for table, defaults in NEWER_SETTINGS.items():
        for name, default in defaults.items():
            if settings[table].get(name) == default:
                del settings[table][name]
    return digest(table_for_hashing(settings))


def _runs_on_gpu(device: str) -> bool:
    """Whether a run on this device of the settings would run on a CUDA device, as far as this machine decides it."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def row_file(folder: Path, key: str) -> Path:
    """The file of a finished cell's row."""
    return folder / f"{key}.json"


def scores_file(folder: Path, key: str) -> Path:
    """The file of a cell's logits of the test split: (n images, m texts) float32."""
    return folder / f"{key}.npy"


def run_grid(
    cells: Sequence[tuple[dict[str, Any], Recipe]],
    folder: Path,
    *,
    jobs: int = 1,
    pool: ThreadPoolExecutor | None = None,
    keep_scores: Collection[str] = (),
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    run: RunCell | None = None,
) -> list[dict[str, Any]]:
    """Run every cell that has no row yet; return all rows in the order of the cells.

    Where several run at a time, the first error is raised after the others have finished and were kept.

    Args:
        cells: labels for the row (such as method and noise rate) with the recipe.
        folder: holds a JSON file per finished cell.
        jobs: number of cells that run at a time; each in a subprocess if there are several.
        pool: of `jobs` threads, shared by several grids that run at a time. It is never shut down here.
        keep_scores: keys of the cells whose test scores are kept.
        run: called instead of `run_cell`; a function of a module, which a subprocess can import.
    """
    run = run_cell if run is None else run
    folder.mkdir(parents=True, exist_ok=True)
    scores = {key: scores_file(folder, key) for key in keep_scores}
    missing = {}
    for labels, recipe in cells:
        key = cell_key(recipe)
        if not row_file(folder, key).exists() or (key in scores and not scores[key].exists()):
            missing[key] = (labels, recipe)
    if jobs == 1 and pool is None:
        for key, (labels, recipe) in missing.items():
            on_row(_finish(folder, key, labels, run(recipe, None, scores.get(key))))
    elif missing:
        threads, context = max(1, torch.get_num_threads() // jobs), _cell_context()
        # Each thread waits for a subprocess.
        with ThreadPoolExecutor(jobs) if pool is None else nullcontext(pool) as threads_of_cells:
            futures = {
                threads_of_cells.submit(_run_in, context, run, recipe, threads, scores.get(key)): (key, labels)
                for key, (labels, recipe) in missing.items()
            }
            problem: BaseException | None = None
            try:
                for future in as_completed(futures):
                    key, labels = futures[future]
                    if (failed := future.exception()) is None:
                        on_row(_finish(folder, key, labels, future.result()))
                    else:
                        problem = problem or failed  # raised at the end, so that the other rows are kept
            except BaseException:
                if pool is None:
                    threads_of_cells.shutdown(wait=False, cancel_futures=True)
                raise
            if problem is not None:
                raise problem
    return [{**labels, **read_row(folder, cell_key(recipe))} for labels, recipe in cells]


def run_in_subprocess(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `work` in a new interpreter, so that neither its memory nor its failure affects the next call.

    The process ends with its parent.
    """
    return _run_in(get_context("spawn"), work, *args, **kwargs)


def _run_in(context: BaseContext, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    with ProcessPoolExecutor(1, context, initializer=exit_with_parent) as pool:
        return pool.submit(work, *args, **kwargs).result()


def _cell_context() -> BaseContext:
    """Processes forked from a server that has imported PyTorch but never used it, which saves each cell seconds.

    New interpreters where the server could differ from one: it keeps the environment variables of its start. It does
    not import this package, because it knows the import path of its start alone.
    """
    global _server_environment
    if _server_environment is None:
        _server_environment = dict(os.environ)
    if sys.platform != "linux" or _server_environment != dict(os.environ):
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo"])  # the optimizers import the latter
    return context


def run_cell(recipe: Recipe, threads: int | None = None, keep_scores: Path | None = None) -> dict[str, Any]:
    """Train one recipe in memory; the test split is scored once, with the best model of the validation.

    Args:
        keep_scores: file for the scores of the test split, written last.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    started = time.monotonic()
    prepared = prepare(recipe)
    history: list[dict[str, Any]] = []
    trainer = make_trainer(prepared, HistoryReporter(history), observer=_division_observer(prepared))
    peaks = _training_peaks(trainer)
    trainer.run()
    last = history[-1]
    assert trainer.best_weights is not None
    prepared.matcher.load_state_dict(trainer.best_weights)
    test = read_split(recipe.data, recipe.data.test_split)
    test = pairs_for_model(prepared.matcher, test, pixel_reading(recipe.data))
    with trainer.step.autocast():  # the precision of the validation
        scores = score_matrix(prepared.matcher, test, prepared.vocabulary)
        pair_scores = in_batch_scores(prepared.matcher, prepared.train, prepared.vocabulary)
    row = {
        "val_rsum": max(r["val/rsum"] for r in history),
        "last_val_rsum": last["val/rsum"],
        "best_epoch": max(history, key=lambda r: r["val/rsum"])["epoch"] + 1,
        **epoch_counts(history),
        **final_metrics(scores, test, recipe.data),
        "train_auroc": detection_metrics(prepared.is_noisy, pair_scores.match)["auroc"],
        "selected": (last["selected_i2t"] + last["selected_t2i"]) / 2 if "selected_i2t" in last else None,
        "selected_wrong": last.get("selected_wrong"),
        "noisy_gradient_ratio": last.get("noisy_gradient_ratio"),
        "noisy_pull_ratio": last.get("noisy_pull_ratio"),
        **{name: last.get(name) for name in DIVISION},
        "memory_bytes_per_pair": sum(t.nbytes for t in prepared.method.state_dict().values()) / len(prepared.train),
        "networks": prepared.method.networks,
        "filter_seconds_per_epoch": sum(r["time/filter_seconds"] for r in history) / len(history),
        "seconds_per_epoch": sum(r["time/train_seconds"] for r in history) / len(history),
        "peak_memory_mb": max(peaks),
        "seconds": time.monotonic() - started,
        "device": str(prepared.process.device),
        "precision": trainer.settings.precision,
        "cuda_graphs": trainer.settings.cuda_graphs,
        "compile": trainer.settings.compile,
        **{f"noise_{key}": value for key, value in describe_noise(prepared.noise).items()},
    }
    if keep_scores is not None:
        atomic_write(keep_scores, lambda partial: np.save(partial, scores.float().numpy()))
    return row | {"history": [{k: v for k, v in r.items() if isinstance(v, int | float)} for r in history]}


def _division_observer(prepared: Prepared) -> DivisionObserver | None:
    """For a run with known noise; without it there is nothing to divide."""
    if not prepared.is_noisy.any():
        return None
    images = make_batches(prepared).image_ids
    return DivisionObserver(images(prepared.true_image), images(prepared.train.image_of_text))


def epoch_counts(history: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many epochs were trained in all, and how many of them were warm-up."""
    return {"epochs": len(history), "warmup_epochs": sum(bool(row.get("warmup")) for row in history)}


def final_metrics(scores: Tensor, test: Pairs, data: DataSettings) -> dict[str, float]:
    """Recalls on the test split, and agreement with human verdicts where the data have them.

    Recalls are means over folds where the data are tested in folds; "test_folds" is then their number.
    """
    folds = data.test_folds or 1
    recalls = retrieval_recall_folds(scores, test.image_of_text, folds=folds)
    metrics: dict[str, float] = {f"test_{name}": value for name, value in recalls.items()}
    if folds > 1:
        metrics["test_folds"] = folds
    verdicts = Path(resolve_source(data.source)) / CROWD_FILE
    if verdicts.exists():
        metrics["crowd_auroc"] = crowd_agreement(scores, test, verdicts)
    return metrics


def write_csv(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows as CSV, without their histories."""
    flat = [{key: _brief(value) for key, value in row.items() if key != "history"} for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    atomic_write(path, file.getvalue())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a grid's CSV file with the histories of their cells; means, which have none, are left out."""
    rows = _rows_of(path)
    cells = path.with_suffix(".cells")
    for number, row in enumerate(rows, 2):
        if not row.get("key"):
            raise UserError(f"{path}, line {number} has no key, so the history of its run cannot be found")
        if not row_file(cells, row["key"]).exists():
            missing = row_file(cells, row["key"])
            raise UserError(f"{missing} is missing, and with it the history of that run; run the grid again")
        row["history"] = read_row(cells, row["key"]).get("history")
    return [row for row in rows if row["history"] is not None]


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a grid's CSV file, numbers as numbers and empty cells left out; without histories."""
    return [{key: value for key, value in row.items() if value != ""} for row in _rows_of(path)]


def _rows_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(f"{path} does not exist; `srem bench methods -o {path}` makes it")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file, restval=""))
    except (csv.Error, UnicodeDecodeError) as cause:
        raise UserError(f"{path} is no table of `srem bench methods`: it cannot be read as CSV ({cause})") from cause
    rows = [{key: _value(key, text) for key, text in row.items()} for row in lines]
    if not rows:
        raise UserError(f"{path} has no rows; `srem bench methods -o {path}` makes it")
    for number, row in enumerate(rows, 2):
        _check_row(row, f"{path}, line {number}")
    return rows


def _check_row(row: dict[str, Any], place: str) -> None:
    if None in row:
        raise UserError(f"{place} has more fields than the header")
    if missing := [name for name in ROW_LABELS if row.get(name, "") == ""]:
        raise UserError(f"{place} has no {missing[0]}; a table of `srem bench methods` has {', '.join(ROW_LABELS)}")
    for key, value in row.items():
        is_number = value == "" or isinstance(value, (int, float))
        if (key in NUMBERS or key.startswith("test_")) and not is_number:
            raise UserError(f"{place}: {key} must be a number, got '{value:.40}'")
    if not 0 <= row["rate"] <= 1:
        raise UserError(f"{place}: rate must lie between 0 and 1, got {row['rate']:g}")


def _value(key: str | None, text: Any) -> Any:
    """The text of a field as a number if it is one; labels and keys stay text."""
    return text if key in (None, "key", "recipe", *ROW_LABELS[:-1]) else _number(text)


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_row(folder: Path, key: str) -> dict[str, Any]:
    """The row of a finished cell."""
    row = read_json(row_file(folder, key))
    return row | epoch_counts(row["history"]) if "history" in row else row  # older rows lack the counts


def _training_peaks(trainer: Trainer) -> list[float]:
    """A list that receives the peak memory of each epoch's training, without its validation.

    On the CPU it is the peak of the whole process so far, which is some 100 MB less where the process was forked.
    """
    peaks: list[float] = []
    validate, device = trainer.validate, trainer.device

    def measured(matcher: Matcher) -> dict[str, float]:
        peaks.append(peak_memory_mb(device))
        metrics = {} if validate is None else validate(matcher)
        _reset_peak(device)
        return metrics

    _reset_peak(device)  # the process may have run another cell before
    trainer.validate = measured
    return peaks


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _finish(folder: Path, key: str, labels: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    row = {"key": key, **row}
    atomic_write(row_file(folder, key), json.dumps(row))
    return {**labels, **row}


def _brief(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
