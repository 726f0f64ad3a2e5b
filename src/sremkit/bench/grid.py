"""A grid of runs: one cell a recipe, several side by side, finished cells kept.

A cell is named by the hash of its resolved recipe. Its row is written when it is finished, so an interrupted
grid goes on where it stopped, and a grid that grew computes only what is new. Where they are asked for, the
scores of the test split lie beside the row; weights are never kept, so a finished cell without scores runs again.
"""

from __future__ import annotations

import csv
import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.bench.own_process import in_own_process
from sremkit.data.pairs import Pairs
from sremkit.data.paths import resolve_source
from sremkit.errors import UserError
from sremkit.evaluation import detection_metrics, retrieval_recall_folds
from sremkit.evaluation.crowd import FILE, crowd_agreement
from sremkit.evaluation.judging import judge_pairs
from sremkit.evaluation.scoring import score_pairs
from sremkit.experiment import Prepared, describe_noise, make_trainer, peak_memory_mb, prepare, read_split
from sremkit.models import Matcher
from sremkit.recipes import DataSettings, Recipe, recipe_to_toml
from sremkit.training.checkpoint import replace_file
from sremkit.training.loop import Trainer
from sremkit.training.progress import Silent


def cell_key(recipe: Recipe) -> str:
    """Names a cell: the same settings give the same key, in whatever order and whatever the recipe is called."""
    settings = tomllib.loads(recipe_to_toml(recipe))
    del settings["name"]
    if recipe.training.precision != "bf16" or not recipe.training.full_precision_steps:
        del settings["training"]["full_precision_steps"]  # then a run is what it was before this setting
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def row_file(folder: Path, key: str) -> Path:
    """Where a finished cell keeps its row."""
    return folder / f"{key}.json"


def scores_file(folder: Path, key: str) -> Path:
    """Where a cell keeps its logits of the test split: (n images, m texts) float32."""
    return folder / f"{key}.npy"


def run_grid(
    cells: Sequence[tuple[dict[str, Any], Recipe]],
    folder: Path,
    *,
    side_by_side: int = 1,
    keep_scores: Collection[str] = (),
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Run every cell that has no row yet; returns all rows in the order of the cells.

    Args:
        cells: labels for the row (such as method and noise rate) with the recipe.
        folder: keeps a JSON file a finished cell.
        side_by_side: how many cells run at a time, each in a process of its own.
        keep_scores: keys of the cells whose scores of the test split are kept beside the row.

    Raises:
        Exception: the first problem of a cell; of cells side by side when the others are done and kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scores = {key: scores_file(folder, key) for key in keep_scores}
    missing = {}
    for labels, recipe in cells:
        key = cell_key(recipe)
        if not row_file(folder, key).exists() or (key in scores and not scores[key].exists()):
            missing[key] = (labels, recipe)
    if side_by_side == 1:
        for key, (labels, recipe) in missing.items():
            on_row(_finish(folder, key, labels, run_cell(recipe, None, scores.get(key))))
    elif missing:
        threads = max(1, torch.get_num_threads() // side_by_side)
        with ThreadPoolExecutor(side_by_side) as pool:  # threads that only wait
            futures = {
                pool.submit(in_own_process, run_cell, recipe, threads, scores.get(key)): (key, labels)
                for key, (labels, recipe) in missing.items()
            }
            problem: BaseException | None = None
            try:
                for future in as_completed(futures):
                    key, labels = futures[future]
                    if (failed := future.exception()) is None:
                        on_row(_finish(folder, key, labels, future.result()))
                    else:
                        problem = problem or failed  # the others go on, and their rows would be lost
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            if problem is not None:
                raise problem
    return [{**labels, **read_row(folder, cell_key(recipe))} for labels, recipe in cells]


def run_cell(recipe: Recipe, threads: int | None = None, keep_scores: Path | None = None) -> dict[str, Any]:
    """Train one recipe in memory; the test split is looked at once, with the best model of the validation.

    Args:
        keep_scores: file for the scores of the test split, written when all else is done.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    started = time.monotonic()
    prepared = prepare(recipe)
    history: list[dict[str, Any]] = []
    trainer = make_trainer(prepared, Silent(history))
    peaks = _training_peaks(trainer)
    trainer.run()
    last_rsum = history[-1]["val/rsum"]
    assert trainer.best_weights is not None
    prepared.matcher.load_state_dict(trainer.best_weights)
    test = read_split(recipe.data, recipe.data.test_split)
    with trainer.step.precision():  # as it was validated
        scores = score_pairs(prepared.matcher, test, prepared.vocabulary)
        train_auroc = _detection(prepared)
    row = {
        "val_rsum": max(r["val/rsum"] for r in history),
        "last_val_rsum": last_rsum,
        "best_epoch": max(history, key=lambda r: r["val/rsum"])["epoch"] + 1,
        **final_metrics(scores, test, recipe.data),
        "train_auroc": train_auroc,
        "selected": _mean(history[-1], "selected_i2t", "selected_t2i"),
        "selected_wrong": history[-1].get("selected_wrong"),
        "noisy_gradient_ratio": history[-1].get("noisy_gradient_ratio"),
        "noisy_pull_ratio": history[-1].get("noisy_pull_ratio"),
        "networks": prepared.method.networks,
        "filter_seconds_per_epoch": sum(r["time/filter_seconds"] for r in history) / len(history),
        "seconds_per_epoch": sum(r["time/train_seconds"] for r in history) / len(history),
        "peak_memory_mb": max(peaks),
        "seconds": time.monotonic() - started,
        "device": str(prepared.process.device),
        **{f"noise_{key}": value for key, value in describe_noise(prepared.noise).items()},
    }
    if keep_scores is not None:
        _save(keep_scores, scores)
    return row | {"history": [{k: v for k, v in r.items() if isinstance(v, int | float)} for r in history]}


def final_metrics(scores: Tensor, test: Pairs, data: DataSettings) -> dict[str, float]:
    """Recalls on the test split, and agreement with people where the data have their verdicts.

    In folds, where the data are tested so, are the recalls alone; "test_folds" then says how many.
    """
    folds = data.test_folds or 1
    recalls = retrieval_recall_folds(scores, test.image_of_text, folds=folds)
    metrics: dict[str, float] = {f"test_{name}": value for name, value in recalls.items()}
    if folds > 1:
        metrics["test_folds"] = folds
    verdicts = Path(resolve_source(data.source)) / FILE
    if verdicts.exists():
        metrics["crowd_auroc"] = crowd_agreement(scores, test, verdicts)
    return metrics


def write_csv(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Rows as CSV, without their histories."""
    flat = [{key: _brief(value) for key, value in row.items() if key != "history"} for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a grid's CSV file, with the histories that its finished cells kept.

    Means of cells have no course of their own and are left out.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; `srem bench methods -o {path}` makes it")
    with path.open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    cells = path.with_suffix(".cells")
    for row in rows:
        cell = row_file(cells, row["key"])
        if not cell.exists():
            raise UserError(f"{cell} is gone, and with it the course of that run; run the grid again")
        row["history"] = read_row(cells, row["key"]).get("history")
    return [row for row in rows if row["history"] is not None]


def read_row(folder: Path, key: str) -> dict[str, Any]:
    """What a finished cell found."""
    return json.loads(row_file(folder, key).read_text(encoding="utf-8"))


def _training_peaks(trainer: Trainer) -> list[float]:
    """Filled by each epoch's peak of memory, without validation, whose blocks take what is free.

    On the processor it is that of the whole process so far.
    """
    peaks: list[float] = []
    validate, device = trainer.validate, trainer.device

    def apart(matcher: Matcher) -> dict[str, float]:
        peaks.append(peak_memory_mb(device))
        metrics = {} if validate is None else validate(matcher)
        _forget_peak(device)
        return metrics

    _forget_peak(device)  # the process may have finished another cell before
    trainer.validate = apart
    return peaks


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _detection(prepared: Prepared) -> float:
    judged = judge_pairs(prepared.matcher, prepared.train, prepared.vocabulary)
    return detection_metrics(prepared.is_noisy, judged.match)["auroc"]


def _finish(folder: Path, key: str, labels: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    row = {"key": key, **row}
    replace_file(row_file(folder, key), json.dumps(row))
    return {**labels, **row}


def _save(path: Path, scores: Tensor) -> None:
    """In one step: a file that is there is whole."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, scores.float().numpy())
    partial.replace(path)


def _mean(row: dict[str, Any], *keys: str) -> float | None:
    return sum(row[key] for key in keys) / len(keys) if keys[0] in row else None


def _brief(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
