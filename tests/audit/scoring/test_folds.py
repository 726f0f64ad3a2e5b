"""Folds keep groups together and are even; repeated ones hold out whole blocks, so that negatives are held out too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_pairs import SMALL, from_arrays, make_pairs, vectors_of, with_vectors
from sremkit.audit.embed import read_vectors, score_pairs
from sremkit.audit.scoring import cross_fit, fold_model
from sremkit.audit.scoring import folds as folds_module
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.fold_model import FoldScores
from sremkit.audit.scoring.folds import Folds, balanced_folds, hashed_folds, of_readable, repeated_folds
from sremkit.audit.scoring.near_duplicates import row_keys
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.data.pairs import MISSING
from sremkit.training.checkpoint import read_checkpoint, remove_checkpoint, write_checkpoint

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
    return repeated_folds(image_of_text, np.arange(num_images), 5, repeats=repeats, seed=3), image_of_text


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
    np.testing.assert_array_equal(folds.fold[0], balanced_folds(image_of_text, np.arange(num_images), 5, seed=3))
    np.testing.assert_array_equal(folds.block, folds.fold[0])


@pytest.mark.parametrize(("groups", "size"), [(50, 20), (100, 10), (12, 17), (10, 20), (400, 5), (3, 40)])
def test_every_pair_has_negatives_in_its_block_whatever_the_groups(groups: int, size: int) -> None:
    """Near-duplicates are no negatives of each other, so a block must not be one group of them, nor a fold empty."""
    group_of_image = np.arange(groups * size) // size
    folds = repeated_folds(np.arange(groups * size), group_of_image, 5, repeats=4, seed=0)
    if folds.repeats > 1:
        for block in range(folds.num_blocks):
            assert len(np.unique(group_of_image[folds.block == block])) >= 2
    assert (folds.repeats > 1) == (groups >= 100)


@pytest.mark.parametrize(("groups", "copies"), [(25, 20), (8, 30)])
def test_collections_of_near_duplicates_are_scored(groups: int, copies: int) -> None:
    clean, is_wrong = make_pairs(0.3, num_images=groups * copies, captions=1, seed=2)
    images, _ = vectors_of(clean)
    generator = np.random.default_rng(0)
    images = images[np.arange(len(images)) // copies * copies]  # bursts of the same scene
    pairs = with_vectors(clean, images=images + 1e-3 * generator.normal(size=images.shape).astype(np.float32))
    scores = score_pairs(pairs, ScoringSettings(candidates=100, negatives=20_000))
    assert np.isfinite(scores.match_prob).all()
    assert len(is_wrong) == len(scores)


def test_a_fold_of_one_image_has_no_near_negatives() -> None:
    """An image with most of the captions is a fold by itself."""
    pairs, _ = make_pairs(0.0, num_images=80, captions=1)
    texts = np.concatenate([np.zeros(150, dtype=np.int64), np.arange(80)])
    images, vectors = vectors_of(pairs)
    jitter = np.random.default_rng(0).normal(size=(len(texts), vectors.shape[1])).astype(np.float32)
    scores = score_pairs(from_arrays(images, vectors[texts] + 0.1 * jitter, texts), ScoringSettings(candidates=100))
    assert np.isfinite(scores.match_prob).all()


def test_null_pairs_of_all_divisions_are_in_one_order() -> None:
    """Block k has null statistics 10 k, 10 k + 1, ... in every division, whichever fold it is in."""
    blocks = {0: [0, 1], 1: [10], 2: [20, 21, 22], 3: [30]}
    orders = []
    for members in ([(3, 0), (2, 1)], [(1, 2), (0, 3)]):  # blocks of the folds of each division
        folds = [fold_scores(list(fold), blocks) for fold in members]
        given, null = cross_fit._on_one_scale(folds, np.arange(4))
        assert given.shape == (4,)
        orders.append(null)
        raw = {fold: [x for b in sorted(members[fold]) for x in blocks[b]] for fold in range(2)}
        for fold in range(2):  # in standard deviations of the fold
            mean, std = np.mean(raw[fold]), np.std(raw[fold])
            for block in members[fold]:
                start = sum(len(blocks[b]) for b in range(block))
                expected = (np.array(blocks[block]) - mean) / std
                np.testing.assert_allclose(null[start : start + len(blocks[block])], expected)
    assert len(orders[0]) == len(orders[1]) == 7


def fold_scores(members: list[int], blocks: dict[int, list[int]]) -> FoldScores:
    """Scores of a fold that holds these blocks, each with one given pair of its number."""
    members = sorted(members)
    empty = np.zeros(0)
    null = np.array([x for block in members for x in blocks[block]], dtype=np.float64)
    null_block = np.array([block for block in members for _ in blocks[block]])
    rows, zeros = np.array(members), np.zeros(len(members))
    return FoldScores(
        rows, zeros, *([zeros] * 4), rows, rows, null, null_block, empty, empty.astype(int), empty.astype(int), 1
    )


def test_finished_folds_of_another_division_are_not_used(tmp_path, monkeypatch) -> None:
    pairs, _ = make_pairs(0.3, num_images=200)
    first = score_pairs(pairs, REPEATED, folder=tmp_path)
    monkeypatch.setattr(folds_module, "MAX_BLOCKS", 8)
    for number in (1, 4):
        remove_checkpoint(tmp_path / f"fold-{number}")
    again = score_pairs(pairs, REPEATED, folder=tmp_path)
    np.testing.assert_array_equal(again.match_prob, score_pairs(pairs, REPEATED).match_prob)
    assert not np.array_equal(again.match_prob, first.match_prob)


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
