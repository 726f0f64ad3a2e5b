"""The first minute: plain training and SREM on generated scenes of which 40 % are captioned wrongly.

Both methods get the same pairs, model and number of epochs. What differs is whether wrong pairs are believed.
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

from sremkit.data import Pairs
from sremkit.errors import UserError
from sremkit.evaluation import detection_metrics, retrieval_recall
from sremkit.evaluation.judging import Judgement, judge_pairs
from sremkit.evaluation.scoring import encode_pairs, score_pairs
from sremkit.experiment import Prepared, load_best, prepare, read_split, start_run, train
from sremkit.models import Matcher
from sremkit.recipes import Recipe, load_recipe, recipe_to_toml
from sremkit.reports import figures
from sremkit.reports.page import picture_uri, render
from sremkit.training.checkpoint import replace_file
from sremkit.training.loop import Reporter
from sremkit.training.run_folder import RunFolder
from sremkit.training.trouble import StoppedError

RECIPES = {"plain (InfoNCE)": "scenes-infonce", "SREM": "scenes-srem"}
GALLERY = 24
MARKER = "demo.json"  # says that a folder is a demo's, and with which settings

ReporterFor = Callable[[str, int], AbstractContextManager[Reporter | None]]


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method reached."""

    title: str
    recall: dict[str, float]  # on the test split
    detection: dict[str, float]  # of the wrong training pairs
    seconds: float
    history: list[dict[str, Any]]
    judgement: Judgement
    is_noisy: np.ndarray
    noise_hash: str

    @property
    def noisy_gradient_ratio(self) -> float | None:
        """Of the last epoch; None for methods that select nothing."""
        return self.history[-1].get("noisy_gradient_ratio")


def run_demo(out: Path, reporter_for: ReporterFor, overrides: Sequence[str] = ()) -> list[MethodResult]:
    """Train both methods below `out`, side by side, evaluate them and write `report.html`.

    A demo that was interrupted goes on; a finished one, or one with other settings, is run anew. A folder that holds
    something else is left alone.

    Args:
        reporter_for: shows the progress of SREM; plain training runs in a process of its own beside it.
    """
    make_room(out, [recipe_to_toml(load_recipe(name, overrides)) for name in RECIPES.values()])
    (plain, plain_recipe), (srem, srem_recipe) = RECIPES.items()
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
            future = beside.submit(_train_and_evaluate, plain, plain_recipe, out, overrides)
            result, prepared, matcher = _train(srem, srem_recipe, out, overrides, reporter_for)
            results = [future.result(), result]
    except StoppedError as stopped:
        raise StoppedError("stopped and saved; the same command goes on") from stopped
    page = render(
        "demo.html",
        title="Training on pairs that are partly wrong",
        results=results,
        figures=_figures(results),
        cards=_gallery(matcher, prepared, result),
        found=_share_wrong_among_worst(result, 100),
        noise_rate=float(result.is_noisy.mean()),
        num_pairs=len(prepared.train),
        seed=prepared.recipe.training.seed,
    )
    (out / "report.html").write_text(page, encoding="utf-8")
    return results


def make_room(out: Path, settings: list[str]) -> None:
    """Leave what an interrupted demo with these settings has made, remove what any other has made, nothing else."""
    marker = out / MARKER
    if not marker.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} holds something that is not a demo of this version; name another folder with -o"
        )
    wanted = json.dumps(settings)
    goes_on = marker.exists() and marker.read_text(encoding="utf-8") == wanted
    if (out / "report.html").exists() or not goes_on:
        (out / "report.html").unlink(missing_ok=True)
        for name in RECIPES.values():
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(marker, wanted)


def _train(
    title: str, name: str, out: Path, overrides: Sequence[str], reporter_for: ReporterFor
) -> tuple[MethodResult, Prepared, Matcher]:
    recipe = load_recipe(name, overrides)
    prepared = prepare(recipe)
    folder = _folder(out / name, recipe)
    with reporter_for(title, recipe.training.warmup_epochs + recipe.training.epochs) as reporter:
        record = train(prepared, folder, reporter=reporter)
    matcher, _ = load_best(folder)
    return _evaluate(title, prepared, matcher, folder, record["seconds"]), prepared, matcher


def _train_and_evaluate(title: str, name: str, out: Path, overrides: Sequence[str]) -> MethodResult:
    """What the process beside does, without a word."""
    return _train(title, name, out, overrides, lambda *_: nullcontext())[0]


def _folder(path: Path, recipe: Recipe) -> RunFolder:
    return RunFolder.open(path) if (path / "config.toml").exists() else start_run(recipe, path)


def _evaluate(
    title: str, prepared: Prepared, matcher: Matcher, folder: RunFolder, seconds: float
) -> MethodResult:
    data = prepared.recipe.data
    test = read_split(data, data.test_split)
    judgement = judge_pairs(matcher, prepared.train, prepared.vocabulary)
    return MethodResult(
        title=title,
        recall=retrieval_recall(score_pairs(matcher, test, prepared.vocabulary), test.image_of_text),
        detection=detection_metrics(prepared.is_noisy, judgement.match),
        seconds=seconds,
        history=folder.read_metrics(),
        judgement=judgement,
        is_noisy=prepared.is_noisy,
        noise_hash=prepared.noise.hash,
    )


def _figures(results: Sequence[MethodResult]) -> list[str]:
    srem = results[-1]
    curves = {
        result.title: [(row["epoch"] + 1, row["val/rsum"]) for row in result.history] for result in results
    }
    after_warmup = [row for row in srem.history if "noisy_gradient_ratio" in row and not row["warmup"]]
    shares = {
        "selected pairs": [
            (row["epoch"] + 1, 50 * (row["selected_i2t"] + row["selected_t2i"])) for row in after_warmup
        ],
        "wrong among the selected": [(row["epoch"] + 1, 100 * row["selected_wrong"]) for row in after_warmup],
        "noisy gradients": [(row["epoch"] + 1, 100 * row["noisy_gradient_ratio"]) for row in after_warmup],
    }
    drawn = [
        figures.curves(curves, xlabel="epoch", ylabel="validation R_sum", title="Learning curves"),
        figures.histograms(
            _right_and_wrong(srem.judgement.energy_i2t, srem.is_noisy),
            xlabel="energy of the image among a batch's texts",
            title="SREM: energy of right and wrong pairs",
        ),
        figures.histograms(
            _right_and_wrong(srem.judgement.match, srem.is_noisy),
            xlabel="how well the pair fits (0 = certainly wrong)",
            title="SREM: verdict on right and wrong pairs",
        ),
    ]
    if after_warmup:
        drawn.append(
            figures.curves(shares, xlabel="epoch", ylabel="per cent", title="SREM: what it learns from")
        )
    return drawn


def _right_and_wrong(values: np.ndarray, is_noisy: np.ndarray) -> dict[str, np.ndarray]:
    return {"right pairs": values[~is_noisy], "wrong pairs": values[is_noisy]}


def _gallery(matcher: Matcher, prepared: Prepared, result: MethodResult) -> list[dict[str, Any]]:
    """The pairs that SREM is most certain are wrong, each with the caption that fits its picture best."""
    pairs: Pairs = prepared.train
    assert pairs.images is not None
    worst = np.argsort(result.judgement.match, kind="stable")
    rows = _one_each(worst, pairs.image_of_text)[:GALLERY]
    images, texts = encode_pairs(matcher, pairs, prepared.vocabulary)
    scores = matcher.score_all(images[pairs.image_of_text[rows]], texts)  # (GALLERY, m)
    better = scores.argmax(dim=1).tolist()
    return [
        {
            "picture": picture_uri(pairs.images.open(int(pairs.image_of_text[row]))),
            "given": pairs.texts[row],
            "better": pairs.texts[best],
            "match": float(result.judgement.match[row]),
            "really_wrong": bool(result.is_noisy[row]),
        }
        for row, best in zip(rows, better, strict=True)
    ]


def _one_each(rows: np.ndarray, image_of_text: np.ndarray) -> np.ndarray:
    """The first row of every image, in the given order."""
    _, first = np.unique(image_of_text[rows], return_index=True)
    return rows[np.sort(first)]


def _share_wrong_among_worst(result: MethodResult, count: int) -> float:
    worst = np.argsort(result.judgement.match, kind="stable")[:count]
    return float(result.is_noisy[worst].mean())
