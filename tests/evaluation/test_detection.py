"""Detection metrics against hand-worked values, loops and scikit-learn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import detection as oracle
from sremkit.errors import DataError
from sremkit.evaluation import detection_metrics
from sremkit.evaluation.detection import crowd_agreement, crowd_labels
from training import tiny

EXACT = {"rel": 1e-12, "abs": 0}


def random_case(seed: int, *, size: int = 60, levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mismatch = rng.random(size) < 0.4
    mismatch[:2] = (True, False)  # both kinds are there
    score = rng.standard_normal(size) - mismatch
    return mismatch, score if levels is None else np.round(score * levels) / levels


@pytest.mark.parametrize("levels", [None, 1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ranking_metrics_match_the_loop_oracle(seed: int, levels: int | None) -> None:
    mismatch, score = random_case(seed, levels=levels)
    got = detection_metrics(mismatch, score)
    assert list(got) == ["auroc", "average_precision", "true_rate"]
    assert got["auroc"] == pytest.approx(oracle.auroc(mismatch.tolist(), score.tolist()), **EXACT)
    expected = oracle.average_precision(mismatch.tolist(), score.tolist())
    assert got["average_precision"] == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("levels", [None, 1, 3])
@pytest.mark.parametrize("seed", [3, 4])
def test_all_metrics_agree_with_scikit_learn(seed: int, levels: int | None) -> None:
    from sklearn import metrics

    mismatch, score = random_case(seed, size=500, levels=levels)
    verdict = score < -0.5
    got = detection_metrics(mismatch, score, verdict=verdict)
    expected = {
        "auroc": metrics.roc_auc_score(mismatch, -score),
        "average_precision": metrics.average_precision_score(mismatch, -score),
        "true_rate": mismatch.mean(),
        "precision": metrics.precision_score(mismatch, verdict),
        "recall": metrics.recall_score(mismatch, verdict),
        "f1": metrics.f1_score(mismatch, verdict),
        "verdict_rate": verdict.mean(),
    }
    assert got == pytest.approx(expected, rel=1e-10)


def test_six_pairs_with_a_tie_by_hand() -> None:
    mismatch = np.array([True, False, True, False, False, True])
    score = np.array([0.1, 0.2, 0.2, 0.7, 0.8, 0.9])
    # Couples (wrong, right), wins of the lower wrong score: 0.1 beats 0.2 0.7 0.8 -> 3; 0.2 ties 0.2, beats
    # 0.7 0.8 -> 2.5; 0.9 beats none -> 0. AUROC = 5.5 / 9.
    # Thresholds: 0.1 finds 1 of 1; 0.2 finds 2 of 3; 0.7 and 0.8 find no more; 0.9 finds 3 of 6.
    # AP = (1 + 2/3 + 1/2) / 3 = 13/18.
    # Verdict calls 0.1, 0.2, 0.2, 0.7: 2 of 4 are wrong, 2 of 3 wrong ones found, f1 = 2*2 / (4 + 3).
    got = detection_metrics(mismatch, score, verdict=score < 0.75, estimated_rate=0.4)
    expected = {
        **{"auroc": 5.5 / 9, "average_precision": 13 / 18, "true_rate": 0.5},
        **{"precision": 0.5, "recall": 2 / 3, "f1": 4 / 7, "verdict_rate": 4 / 6},
        **{"estimated_rate": 0.4, "rate_error": 0.4 - 0.5},
    }
    assert got == pytest.approx(expected, **EXACT)


def test_a_perfect_score_a_reversed_one_and_a_constant_one() -> None:
    mismatch = np.array([True, True, False, False])
    assert detection_metrics(mismatch, np.array([0, 1, 2, 3]))["auroc"] == 1.0
    assert detection_metrics(mismatch, np.array([3, 2, 1, 0]))["auroc"] == 0.0
    flat = detection_metrics(mismatch, np.zeros(4))
    assert (flat["auroc"], flat["average_precision"]) == (0.5, 0.5)


def test_an_overestimated_rate_is_a_positive_error() -> None:
    got = detection_metrics(np.array([True, False]), np.array([0.0, 1.0]), estimated_rate=0.75)
    assert got["rate_error"] == 0.25


def _both(mismatch: list[bool], score: list[float]) -> tuple[float, float]:
    return oracle.auroc(mismatch, score), oracle.average_precision(mismatch, score)


def _nudged(mismatch: list[bool], score: list[float], by: float) -> list[float]:
    """Mismatches moved a little, each by another amount, so that none of them ties any more."""
    return [value + by * (1 + k / 100) * wrong for k, (wrong, value) in enumerate(zip(mismatch, score, strict=True))]


WRONG_TWINS = {
    "high is bad": lambda y, s: _both(y, [-v for v in s]),
    "right pairs are the positives": lambda y, s: _both([not v for v in y], s),
    "ties in favour": lambda y, s: _both(y, _nudged(y, s, -1e-6)),
    "ties against": lambda y, s: _both(y, _nudged(y, s, +1e-6)),
}


@pytest.mark.parametrize("twin", WRONG_TWINS.values(), ids=WRONG_TWINS.keys())
def test_a_wrong_twin_gives_other_values(twin) -> None:
    mismatch, score = random_case(5, levels=2)
    got = detection_metrics(mismatch, score)
    auroc, average_precision = twin(mismatch.tolist(), score.tolist())
    assert got["auroc"] != pytest.approx(auroc, rel=1e-6)
    assert got["average_precision"] != pytest.approx(average_precision, rel=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 1, 3]))
def test_only_the_order_of_the_scores_matters_and_its_reversal_mirrors_auroc(seed: int, levels) -> None:
    mismatch, score = random_case(seed, levels=levels)
    order = np.random.default_rng(seed).permutation(len(score))
    got = detection_metrics(mismatch, score)
    assert detection_metrics(mismatch[order], score[order]) == got
    assert detection_metrics(mismatch, np.unique(score, return_inverse=True)[1]) == got
    assert detection_metrics(mismatch, -score)["auroc"] == pytest.approx(1 - got["auroc"], abs=1e-12)
    assert detection_metrics(~mismatch, -score)["auroc"] == pytest.approx(got["auroc"], abs=1e-12)


@pytest.mark.parametrize("wrong", [False, True])
def test_with_one_kind_of_pair_only_the_ranking_metrics_are_nan(wrong: bool) -> None:
    got = detection_metrics(np.full(4, wrong), np.arange(4.0))
    assert math.isnan(got["auroc"])
    assert math.isnan(got["average_precision"])
    assert got["true_rate"] == float(wrong)


def test_a_ratio_with_denominator_zero_is_nan() -> None:
    silent = detection_metrics(np.array([True, False]), np.zeros(2), verdict=np.zeros(2, dtype=bool))
    assert math.isnan(silent["precision"])
    assert (silent["recall"], silent["f1"], silent["verdict_rate"]) == (0.0, 0.0, 0.0)
    nothing_wrong = detection_metrics(np.zeros(2, dtype=bool), np.zeros(2), verdict=np.array([True, False]))
    assert math.isnan(nothing_wrong["recall"])
    assert (nothing_wrong["precision"], nothing_wrong["f1"]) == (0.0, 0.0)


def test_zeros_and_ones_may_stand_for_false_and_true() -> None:
    mismatch, score = random_case(6)
    expected = detection_metrics(mismatch, score, verdict=score < 0)
    assert detection_metrics(mismatch.astype(int), score, verdict=(score < 0).astype(np.uint8)) == expected


@pytest.mark.parametrize(
    ("mismatch", "score", "options", "message"),
    [
        ([], [], {}, "empty"),
        ([True, False], [0.0], {}, r"shape \(1,\), but there are 2 pairs"),
        ([True, False], [0.0, np.nan], {}, "score of pair 1 is NaN"),
        ([True, False], ["a", "b"], {}, "real numbers"),
        ([2, 0], [0.0, 1.0], {}, "mismatch must be true or false"),
        ([np.nan, 0], [0.0, 1.0], {}, "mismatch must be true or false"),
        ([[True], [False]], [0.0, 1.0], {}, "must have one dimension"),
        ([True, False], [0.0, 1.0], {"verdict": [True]}, "verdict has 1 pairs, but mismatch has 2"),
        ([True, False], [0.0, 1.0], {"verdict": [0.3, 0.9]}, "verdict must be true or false"),
        ([True, False], [0.0, 1.0], {"estimated_rate": 40.0}, "between 0 and 1, got 40"),
        ([True, False], [0.0, 1.0], {"estimated_rate": math.nan}, "between 0 and 1, got nan"),
    ],
)
def test_invalid_inputs_raise(mismatch, score, options, message) -> None:
    with pytest.raises(DataError, match=message):
        detection_metrics(np.array(mismatch), np.array(score), **options)


# Image, caption, share of yes, votes for yes and for no. Images are called 0, 1, 2, captions pair-000 to pair-005.
VOTES = [
    ("0", "pair-000", "1.0", "3", "0"),  # fits
    ("0", "pair-003", "0.333", "1", "2"),  # does not
    ("1", "pair-000", "0.5", "2", "2"),  # a tie
    ("2", "pair-001", "0.667", "10", "9"),  # fits; as words, "10" is before "9"
    ("2", "pair-005", "0.0", "0", "3"),  # does not
    ("elsewhere", "pair-001", "1.0", "3", "0"),  # another split's image
    ("1", "elsewhere", "1.0", "3", "0"),  # and caption
]


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    file = tmp_path / "votes.tsv"
    file.write_text("".join("\t".join(line) + "\n" for line in VOTES), encoding="utf-8")
    return file


def test_the_majority_decides_and_ties_and_other_splits_are_excluded(votes: Path) -> None:
    rows, columns, fits = crowd_labels(tiny.tiny_pairs(num_images=3), votes)
    assert rows.tolist() == [0, 0, 2, 2]
    assert columns.tolist() == [0, 3, 1, 5]
    assert fits.tolist() == [True, False, True, False]


def test_crowd_agreement_is_the_auroc_of_matching_combinations(votes: Path) -> None:
    # Fitting score 4 and 2, others 3 and 1: of four comparisons 4 > 3, 4 > 1 and 2 > 1 are right, 2 > 3 is not.
    scores = np.full((3, 6), 9.0)
    scores[0, 0], scores[2, 1], scores[0, 3], scores[2, 5] = 4.0, 2.0, 3.0, 1.0
    pairs = tiny.tiny_pairs(num_images=3)
    assert crowd_agreement(scores, pairs, votes) == pytest.approx(0.75)
    assert crowd_agreement(torch.from_numpy(-scores), pairs, votes) == pytest.approx(0.25)
