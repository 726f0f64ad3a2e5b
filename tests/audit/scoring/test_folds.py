"""Folds keep groups together and are even; repeated ones hold out whole blocks, so that negatives are held out too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_pairs import SMALL, make_pairs
from sremkit.audit.embed import read_vectors, score_pairs
from sremkit.audit.scoring import cross_fit, fold_model
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.folds import Folds, balanced_folds, hashed_folds, of_readable, repeated_folds
from sremkit.audit.scoring.near_duplicates import row_keys
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.data.pairs import MISSING
from sremkit.training.checkpoint import read_checkpoint, write_checkpoint

REPEATED = replace(SMALL, repeats=3)


def test_folds_keep_groups_together_and_are_even() -> None:
    rng = np.random.default_rng(0)
    image_of_text = rng.integers(0, 60, 400)
    group_of_image = np.arange(60) // 2  # images come in twos
    fold = balanced_folds(image_of_text, group_of_image, 3, seed=0)
    for group in range(30):
        assert len(set(fold[group_of_image[image_of_text] == group])) <= 1
    assert np.ptp(np.bincount(fold, minlength=3)) <= 14  # not more than the pairs of one group


def test_hashed_folds_are_even_and_depend_on_the_seed() -> None:
    keys = row_keys(np.random.default_rng(0).normal(size=(40_000, 2)))
    sizes = np.bincount(hashed_folds(keys, 3, seed=0)) / 40_000
    assert np.abs(sizes - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 40_000)  # five standard errors
    assert not np.array_equal(hashed_folds(keys, 3, seed=0), hashed_folds(keys, 3, seed=1))


def divided(num_images: int = 200, repeats: int = 4) -> tuple[Folds, np.ndarray]:
    image_of_text = np.repeat(np.arange(num_images), 2)
    return repeated_folds(image_of_text, np.arange(num_images) // 2, 5, repeats=repeats, seed=3), image_of_text


def test_blocks_are_in_one_fold_of_each_division() -> None:
    folds, image_of_text = divided()
    assert folds.fold.shape == (4, 400)
    assert folds.num_blocks == 20
    for block in range(folds.num_blocks):
        chosen = folds.block == block
        assert all(len(set(of_division[chosen])) == 1 for of_division in folds.fold)
        assert len(np.unique(image_of_text[chosen])) == 10
    for of_division in folds.fold:
        np.testing.assert_array_equal(np.bincount(of_division), [80] * 5)


def test_divisions_differ_as_independent_ones_would() -> None:
    folds, _ = divided()
    block_folds = np.array([[of[folds.block == block][0] for block in range(20)] for of in folds.fold])
    together = block_folds[:, :, None] == block_folds[:, None, :]  # (4, 20, 20)
    of_other_blocks = together[:, ~np.eye(20, dtype=bool)]
    assert of_other_blocks.mean() == pytest.approx(3 / 19)  # four blocks a fold
    assert of_other_blocks.all(axis=0).mean() < 0.02


@pytest.mark.parametrize(("num_images", "repeats"), [(90, 4), (200, 1)])
def test_few_images_and_one_division_are_divided_as_ever(num_images: int, repeats: int) -> None:
    folds, image_of_text = divided(num_images, repeats)
    assert folds.repeats == 1
    np.testing.assert_array_equal(folds.fold[0], balanced_folds(image_of_text, np.arange(num_images) // 2, 5, seed=3))
    np.testing.assert_array_equal(folds.block, folds.fold[0])


def test_pairs_that_cannot_be_read_take_no_part() -> None:
    folds, _ = divided()
    whole = of_readable(folds, np.arange(1, 401), 402)
    assert (whole.fold[:, [0, 401]] == MISSING).all()
    np.testing.assert_array_equal(whole.fold[:, 1:401], folds.fold)


@pytest.mark.parametrize(
    ("settings", "num_pairs", "repeats"),
    [
        (ScoringSettings(), 400, 4),
        (ScoringSettings(), 6_000, 2),
        (ScoringSettings(), 30_000, 1),
        (ScoringSettings(dual_encoders=1), 400, 1),
        (ScoringSettings(repeats=3), 30_000, 3),
    ],
)
def test_small_collections_are_divided_more_often(settings: ScoringSettings, num_pairs: int, repeats: int) -> None:
    assert settings.repeats_for(num_pairs) == repeats


def test_negatives_are_the_same_in_every_division_and_held_out_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, np.ndarray, np.ndarray]] = []
    divisions: list[Folds] = []
    draw, score = fold_model.draw_negatives, cross_fit.score_fold

    def watched_draw(rows, *arguments, seed, repeat, **options):
        found = draw(rows, *arguments, seed=seed, repeat=repeat, **options)
        seen.append((repeat, found.image, found.text))
        return found

    def watched_score(*arguments, folds, **options):
        divisions.append(folds)
        return score(*arguments, folds=folds, **options)

    monkeypatch.setattr(fold_model, "draw_negatives", watched_draw)
    monkeypatch.setattr(cross_fit, "score_fold", watched_score)
    pairs, _ = make_pairs(0.3, num_images=200)
    score_pairs(pairs, REPEATED)
    folds, image_of_text = divisions[0], pairs.image_of_text
    fold_of_image = np.zeros((3, pairs.num_images), dtype=np.int64)
    fold_of_image[:, image_of_text] = folds.fold
    for _, image, text in seen:
        np.testing.assert_array_equal(fold_of_image[:, image], folds.fold[:, text])
    of_division = [
        sorted((image.tobytes(), text.tobytes()) for r, image, text in seen if r == repeat) for repeat in range(3)
    ]
    assert of_division[0] == of_division[1] == of_division[2]


def test_the_mean_over_divisions_depends_less_on_the_seed() -> None:
    pairs, _ = make_pairs(0.3, num_images=150, captions=1, fuzz=1.5)
    agreement = {}
    for repeats in (1, 6):
        ranks = [
            np.argsort(np.argsort(score_pairs(pairs, replace(SMALL, repeats=repeats, seed=seed)).match_prob))
            for seed in range(2)
        ]
        agreement[repeats] = np.corrcoef(*ranks)[0, 1]
    assert agreement[6] > agreement[1] + 0.05


def test_every_model_that_scores_an_image_again_was_not_trained_on_it(tmp_path, monkeypatch) -> None:
    trained: list[np.ndarray] = []
    train = cross_fit.train_scorers
    monkeypatch.setattr(
        cross_fit, "train_scorers", lambda v, rows, *a, **k: (trained.append(rows), train(v, rows, *a, **k))[1]
    )
    pairs, _ = make_pairs(0.3, num_images=200)
    vectors = read_vectors(pairs)
    scorer = CrossFitScorer(REPEATED, folder=tmp_path, workers=1)
    scores = scorer.fit_score(vectors)
    assert len(scorer.models) == len(trained) == 6
    folds = scorer._folds_of_images(vectors.image_key)  # (3, n)
    for number, rows in enumerate(trained):
        repeat, fold = divmod(number, 2)
        assert not set(np.flatnonzero(folds[repeat] == fold)) & set(pairs.image_of_text[rows])
    scorer.save(tmp_path / "scorer", {}, with_models=False)
    loaded, _ = CrossFitScorer.load(tmp_path / "scorer")
    again = loaded.score(vectors)
    # Candidates are those of the pool, which are not all of the fold's.
    assert np.corrcoef(again.match_prob, scores.match_prob)[0, 1] > 0.98
    np.testing.assert_array_equal(again.fold, scores.fold)


def test_folders_with_one_fold_for_each_image_are_read(tmp_path) -> None:
    pairs, _ = make_pairs(0.3, num_images=200)
    vectors = read_vectors(pairs)
    scorer = CrossFitScorer(SMALL, folder=tmp_path, workers=1)
    scorer.fit_score(vectors)
    scorer.save(tmp_path / "scorer", {}, with_models=False)
    expected = CrossFitScorer.load(tmp_path / "scorer")[0].score(vectors)
    tensors, facts = read_checkpoint(tmp_path / "scorer")
    facts["known_folds"] = [folds[0] for folds in facts["known_folds"]]
    del facts["num_models"], facts["settings"]["repeats"]
    write_checkpoint(tmp_path / "scorer", tensors, facts)
    found = CrossFitScorer.load(tmp_path / "scorer")[0].score(vectors)
    np.testing.assert_array_equal(found.match_prob, expected.match_prob)
