"""The demo: InfoNCE and SREM on generated scenes of which 40 % have a wrong caption.

Both methods use the same pairs, model and number of epochs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.config.recipes import load_recipe, recipe_to_toml
from sremkit.data import Pairs
from sremkit.data.training_pairs import read_split
from sremkit.errors import UserError
from sremkit.evaluation import detection_metrics, retrieval_recall
from sremkit.evaluation.scoring import InBatchScores, encode_pairs, in_batch_scores, score_matrix
from sremkit.experiment import Prepared, load_best, prepare, train
from sremkit.io import atomic_write, refuse_links_out, sole_writer
from sremkit.models import Matcher
from sremkit.reports import figures
from sremkit.reports.page import image_uri, render
from sremkit.training.diagnostics import StoppedError
from sremkit.training.reporters import Reporter
from sremkit.training.run_folder import LOCK, RunFolder

RECIPES = {"InfoNCE": "scenes-infonce", "SREM": "scenes-srem"}
GALLERY = 24
MARKER = "demo.json"  # marks a folder as a demo's, and holds its settings

ReporterFor = Callable[[str, int], AbstractContextManager[Reporter | None]]


@dataclass(frozen=True, eq=False)
class MethodResult:
    """The result of one method."""

    title: str
    recall: dict[str, float]  # on the test split
    detection: dict[str, float]  # of mismatched training pairs
    seconds: float
    history: list[dict[str, Any]]
    scores: InBatchScores
    is_noisy: np.ndarray
    noise_hash: str

    @property
    def noisy_gradient_ratio(self) -> float | None:
        """Of the last epoch; None for methods that select no pairs."""
        return self.history[-1].get("noisy_gradient_ratio")


def run_demo(out: Path, reporter_for: ReporterFor, overrides: Sequence[str] = ()) -> list[MethodResult]:
    """Train both methods at the same time in folders of `out`, evaluate them and write `report.html`.

    An interrupted demo continues; a finished one, or one with other settings, starts again. A folder with other
    content is refused.

    Args:
        reporter_for: reports the progress of SREM; InfoNCE trains in another process.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; name another folder with -o")
    out.mkdir(parents=True, exist_ok=True)
    with sole_writer(out / LOCK, f"another demo is at work in {out}; wait for it, or name another folder with -o"):
        make_room(out, [recipe_to_toml(load_recipe(name, overrides)) for name in RECIPES.values()])
        return _train_both(out, reporter_for, overrides)


def _train_both(out: Path, reporter_for: ReporterFor, overrides: Sequence[str]) -> list[MethodResult]:
    (plain, plain_recipe), (srem, srem_recipe) = RECIPES.items()
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            future = executor.submit(_train_and_evaluate, plain, plain_recipe, out, overrides)
            result, prepared, matcher = _train(srem, srem_recipe, out, overrides, reporter_for)
            results = [future.result(), result]
    except StoppedError as stopped:
        raise StoppedError("stopped and saved; the same command continues") from stopped
    lowest = np.argsort(result.scores.match, kind="stable")
    page = render(
        "demo.html",
        title="Training on partly mismatched pairs",
        results=results,
        figures=_figures(results),
        cards=_gallery(matcher, prepared, result, lowest),
        found=float(result.is_noisy[lowest[:100]].mean()),
        noise_rate=float(result.is_noisy.mean()),
        num_pairs=len(prepared.train),
        seed=prepared.recipe.training.seed,
    )
    atomic_write(out / "report.html", page)
    return results


def make_room(out: Path, settings: list[str]) -> None:
    """Keep the files of an interrupted demo with these settings, and remove those of any other demo."""
    marker = out / MARKER
    out.mkdir(parents=True, exist_ok=True)
    refuse_links_out(out)
    if not marker.exists() and any(entry.name != LOCK for entry in out.iterdir()):
        raise UserError(f"{out} holds files that are not of this version's demo; name another folder with -o")
    wanted = json.dumps(settings)
    continues = marker.exists() and marker.read_text(encoding="utf-8") == wanted
    if (out / "report.html").exists() or not continues:
        (out / "report.html").unlink(missing_ok=True)
        for name in RECIPES.values():
            shutil.rmtree(out / name, ignore_errors=True)
    atomic_write(marker, wanted)


def _train(
    title: str, name: str, out: Path, overrides: Sequence[str], reporter_for: ReporterFor
) -> tuple[MethodResult, Prepared, Matcher]:
    recipe = load_recipe(name, overrides)
    prepared = prepare(recipe)
    path = out / name
    resumed = (path / "config.toml").exists()
    folder = RunFolder.open(path) if resumed else RunFolder.create(path, config=recipe_to_toml(recipe))
    with reporter_for(title, recipe.training.warmup_epochs + recipe.training.epochs) as reporter:
        record = train(prepared, folder, reporter=reporter)
    matcher, _ = load_best(folder)
    return _evaluate(title, prepared, matcher, folder, record["seconds"]), prepared, matcher


def _train_and_evaluate(title: str, name: str, out: Path, overrides: Sequence[str]) -> MethodResult:
    """Train without progress reports, in a process of its own."""
    return _train(title, name, out, overrides, lambda *_: nullcontext())[0]


def _evaluate(title: str, prepared: Prepared, matcher: Matcher, folder: RunFolder, seconds: float) -> MethodResult:
    data = prepared.recipe.data
    test = read_split(data, data.test_split)
    scores = in_batch_scores(matcher, prepared.train, prepared.vocabulary)
    return MethodResult(
        title=title,
        recall=retrieval_recall(score_matrix(matcher, test, prepared.vocabulary), test.image_of_text),
        detection=detection_metrics(prepared.is_noisy, scores.match),
        seconds=seconds,
        history=folder.read_metrics(),
        scores=scores,
        is_noisy=prepared.is_noisy,
        noise_hash=prepared.noise.hash,
    )


def _figures(results: Sequence[MethodResult]) -> list[str]:
    srem = results[-1]
    curves = {result.title: [(row["epoch"] + 1, row["val/rsum"]) for row in result.history] for result in results}
    after_warmup = [row for row in srem.history if "noisy_gradient_ratio" in row and not row["warmup"]]
    shares = {
        "selected pairs": [50 * (row["selected_i2t"] + row["selected_t2i"]) for row in after_warmup],
        "mismatched among the selected": [100 * row["selected_wrong"] for row in after_warmup],
        "noisy gradients": [100 * row["noisy_gradient_ratio"] for row in after_warmup],
    }
    drawn = [
        figures.curves(curves, xlabel="epoch", ylabel="validation R_sum", title="Learning curves"),
        figures.histograms(
            _by_truth(srem.scores.energy_i2t, srem.is_noisy),
            xlabel="energy, image to text",
            title="SREM: energy of matched and mismatched pairs",
        ),
        figures.histograms(
            _by_truth(srem.scores.match, srem.is_noisy),
            xlabel="score of the pair (low: mismatched)",
            title="SREM: score of matched and mismatched pairs",
        ),
    ]
    if after_warmup:
        epochs = [row["epoch"] + 1 for row in after_warmup]
        shown = {name: list(zip(epochs, values, strict=True)) for name, values in shares.items()}
        drawn.append(figures.curves(shown, xlabel="epoch", ylabel="per cent", title="SREM: selected pairs"))
    return drawn


def _by_truth(values: np.ndarray, is_noisy: np.ndarray) -> dict[str, np.ndarray]:
    return {"matched": values[~is_noisy], "mismatched": values[is_noisy]}


def _gallery(matcher: Matcher, prepared: Prepared, result: MethodResult, lowest: np.ndarray) -> list[dict[str, Any]]:
    """The pairs with the lowest scores, one of each image, with the caption that fits its image best."""
    pairs: Pairs = prepared.train
    assert pairs.images is not None
    _, first = np.unique(pairs.image_of_text[lowest], return_index=True)
    rows = lowest[np.sort(first)][:GALLERY]
    images, texts = encode_pairs(matcher, pairs, prepared.vocabulary)
    scores = matcher.score_all(images[pairs.image_of_text[rows]], texts)  # (GALLERY, m)
    better = scores.argmax(dim=1).tolist()
    return [
        {
            "image": image_uri(pairs.images.open(int(pairs.image_of_text[row]))),
            "given": pairs.texts[row],
            "better": pairs.texts[best],
            "match": float(result.scores.match[row]),
            "is_mismatch": bool(result.is_noisy[row]),
        }
        for row, best in zip(rows, better, strict=True)
    ]
