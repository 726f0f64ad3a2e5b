"""Finished runs: their best model, and the recall of one or of several as an ensemble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sremkit.config.recipes import Precision
from sremkit.data.subwords import AnyTokenizer, tokenizer_from_dict
from sremkit.data.training_pairs import read_split
from sremkit.evaluation import retrieval_recall_folds
from sremkit.evaluation.scoring import score_matrix
from sremkit.experiment.preparation import pairs_for_model, pixel_reading
from sremkit.models import Matcher, build_matcher
from sremkit.models.ensemble import logit_of_mean
from sremkit.training.checkpoint import of_another_model, without_prefix
from sremkit.training.distributed import this_process
from sremkit.training.execution import resolve_precision
from sremkit.training.run_folder import RunFolder
from sremkit.training.step import autocast

#: Of a run that was killed before it wrote its record.
UNKNOWN_NOISE = {"protocol": "unknown", "rate": math.nan, "seed": None, "hash": "unknown"}


def load_best(folder: RunFolder) -> tuple[Matcher, AnyTokenizer | None]:
    """The best model of a run, with its vocabulary."""
    tensors, facts = folder.best()
    with of_another_model(folder.checkpoints):
        matcher = build_matcher(facts["model"]["name"], **facts["model"]["options"])
        matcher.load_state_dict(without_prefix("model", tensors))
        vocabulary = None if facts["vocabulary"] is None else tokenizer_from_dict(facts["vocabulary"])
    return matcher.eval(), vocabulary


def evaluate_runs(
    paths: Sequence[Path], *, split: str, folds: int | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Recall of one run's best model, or of several as an ensemble: the logit of their mean similarity.

    Args:
        split: "val" or "test", as the first run's recipe names them.
        folds: average over so many folds of images; by default as that recipe tests, and 1 for "val".
    """
    folders = [RunFolder.open(path) for path in paths]
    recipe = folders[0].recipe()
    name = recipe.data.test_split if split == "test" else recipe.data.val_split
    if folds is None:
        folds = (recipe.data.test_folds or 1) if split == "test" else 1
    given = read_split(recipe.data, name)
    scores = []
    for folder in folders:
        matcher, vocabulary = load_best(folder)
        pairs = pairs_for_model(matcher, given, pixel_reading(recipe.data))
        place = this_process(device).device
        with autocast(_validation_precision(folder, place), place):
            scores.append(score_matrix(matcher.to(place), pairs, vocabulary).float())
    ensemble = scores[0] if len(scores) == 1 else logit_of_mean(*scores)
    metrics = retrieval_recall_folds(ensemble, pairs.image_of_text, folds=folds)
    records = [folder.read_record() for folder in folders]
    noises = [record.get("noise", UNKNOWN_NOISE) for record in records]
    return {
        "runs": [str(path) for path in paths],
        "split": name,
        "folds": folds,
        "ensemble": len(folders) > 1,
        "noise": noises[0],
        "noises": noises,
        "seen_in_training": any(record.get("validates_on_training_pairs", False) for record in records),
        "metrics": metrics,
    }


def _validation_precision(folder: RunFolder, device: torch.device) -> Precision:
    """The precision that a run was validated in; for a run without a record that of a new run on this device."""
    execution = folder.read_record().get("execution", {})
    settings = folder.recipe().training
    given = execution.get("precision", settings.precision) if settings.precision == "auto" else settings.precision
    return resolve_precision(given, device, deterministic=settings.deterministic)
