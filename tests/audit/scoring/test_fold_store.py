"""Finished folds on disk are used again, unless anything that they depend on has changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from made_pairs import SMALL, make_pairs, vectors_of, with_vectors
from sremkit.audit.embed import SCORER, score_pairs
from sremkit.audit.scoring import cross_fit
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.ridge_cca import fit_ridge_cca
from sremkit.training.checkpoint import read_checkpoint, write_checkpoint


@pytest.fixture
def trainings(monkeypatch) -> list[int]:
    """How many pairs each training saw. The ensemble is ridge CCA alone, because it is quick."""
    trained: list[int] = []

    def train_quickly(vectors, rows, settings, *, seed, on_step):
        trained.append(len(rows))
        pairs = torch.from_numpy(rows)
        return [
            fit_ridge_cca(vectors.images, vectors.texts[pairs], vectors.image_of_text[pairs], torch.ones(len(rows)))
        ]

    monkeypatch.setattr(cross_fit, "train_scorers", train_quickly)
    return trained


def test_finished_folds_are_not_trained_again_and_give_the_same_scores(tmp_path: Path, trainings) -> None:
    pairs, _ = make_pairs(0.3, num_images=300)
    first = score_pairs(pairs, SMALL, folder=tmp_path)
    assert len(trainings) == 2
    again = score_pairs(pairs, SMALL, folder=tmp_path)
    assert len(trainings) == 2
    np.testing.assert_array_equal(first.match_prob, again.match_prob)
    np.testing.assert_array_equal(first.better_image, again.better_image)
    np.testing.assert_array_equal(first.rank_i2t, again.rank_i2t)


def test_an_interrupted_run_resumes_with_the_missing_fold(tmp_path: Path, trainings) -> None:
    pairs, _ = make_pairs(0.3, num_images=300)

    def stop(what: str, done: int, total: int) -> None:
        if what == "scored folds":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_pairs(pairs, SMALL, folder=tmp_path, progress=stop)
    assert len(trainings) == 1
    resumed = score_pairs(pairs, SMALL, folder=tmp_path)
    assert len(trainings) == 2
    np.testing.assert_array_equal(resumed.match_prob, score_pairs(pairs, SMALL).match_prob)


@pytest.mark.parametrize("change", ["vector", "pairing", "settings", "broken file"])
def test_a_change_is_noticed_and_folds_are_computed_again(tmp_path: Path, trainings, change: str) -> None:
    pairs, _ = make_pairs(0.3, num_images=60)
    score_pairs(pairs, SMALL, folder=tmp_path)
    settings = SMALL
    if change == "vector":
        images, _ = vectors_of(pairs)
        images[3, 3] += 1
        pairs = with_vectors(pairs, images=images)
    elif change == "pairing":
        pairs = pairs.paired_as(np.roll(pairs.image_of_text, 1))
    elif change == "settings":
        settings = replace(SMALL, candidates=50)
    else:
        for fold in tmp_path.glob("fold-*"):
            (fold / "facts.json").write_text(json.dumps({}))
    score_pairs(pairs, settings, folder=tmp_path)
    assert len(trainings) == 4


def test_a_scorer_with_a_setting_of_an_earlier_version_is_read(tmp_path: Path, trainings) -> None:
    pairs, _ = make_pairs(0.3, num_images=300)
    score_pairs(pairs, SMALL, folder=tmp_path)
    for folder in (tmp_path / SCORER, *tmp_path.glob("model-*")):
        tensors, facts = read_checkpoint(folder)
        facts["settings"]["word_epochs"] = 0
        write_checkpoint(folder, tensors, facts)
    scorer, _ = CrossFitScorer.load(tmp_path / SCORER)
    assert scorer.settings == SMALL
    assert len(scorer.models) == SMALL.folds
