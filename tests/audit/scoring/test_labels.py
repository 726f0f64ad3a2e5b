"""Labels of people: the fit against a search, what they do to scores and rate, and what they must not do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from oracles.labels import best_by_search, evidence_by_draws, log_posterior
from sremkit.audit.scoring import labels
from sremkit.audit.scoring.labels import (
    MIN_LABELS,
    PRIOR_MEAN,
    PRIOR_SCALES,
    apply_labels,
    fit_labels,
    label_features,
    sigmoid,
)
from sremkit.audit.scoring.types import NoiseRate, PairScores
from sremkit.data.pairs import MISSING

CALIBRATED = math.log(0.6 / 0.4) - 2.0


def overconfident(count: int = 2000, *, seed: int = 0, offset: float = 3.0) -> tuple[PairScores, np.ndarray]:
    """Scores that find a third of the mismatches only, and the truth (1: match); P(match) with offset CALIBRATED."""
    rng = np.random.default_rng(seed)
    is_match = (rng.random(count) > 0.4).astype(np.int64)
    hidden = rng.normal(2.0 * is_match, 1.0)
    match_prob = sigmoid(2.0 * hidden + offset)
    scores = PairScores.unscored(count, rate=NoiseRate(float(1 - match_prob.mean()), 0.01, 0.1))
    scores.match_prob[:], scores.fold[:] = match_prob, 0
    return scores, is_match


def some_labels(truth: np.ndarray, count: int, *, seed: int = 1) -> np.ndarray:
    chosen = np.random.default_rng(seed).permutation(len(truth))[:count]
    label = np.full(len(truth), MISSING)
    label[chosen] = truth[chosen]
    return label


def test_the_fit_is_the_maximum_of_the_posterior() -> None:
    scores, truth = overconfident(40)
    features = label_features(scores.match_prob, rank_only=False)
    for scale, fit in zip(PRIOR_SCALES, fit_labels(features, truth), strict=True):
        searched = best_by_search(features.tolist(), truth.tolist(), scale)
        np.testing.assert_allclose(fit.mean, searched, atol=1e-5)


@pytest.mark.parametrize("offset", [3.0, CALIBRATED])
def test_widths_of_the_prior_have_the_shares_of_their_evidence(offset: float) -> None:
    """Near, not equal: the approximation counts slopes and trends below 0, which are excluded."""
    scores, truth = overconfident(25, offset=offset)
    features = label_features(scores.match_prob, rank_only=False)
    evidence = [evidence_by_draws(features.tolist(), truth.tolist(), scale, 4000) for scale in PRIOR_SCALES]
    shares = np.exp(np.array(evidence) - max(evidence))
    found = [fit.weight for fit in fit_labels(features, truth)]
    assert sum(found) == pytest.approx(1.0)
    np.testing.assert_allclose(found, shares / shares.sum(), atol=0.15)
    assert (np.argmax(found) == 2) == (offset == 3.0)  # the widest, where the calibration was wrong


def test_few_labels_change_a_right_calibration_little(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[tuple[float, ...], list[float]] = {}
    for scales in (PRIOR_SCALES, (1.0,)):  # the second is the wrong twin: the widest prior alone
        monkeypatch.setattr(labels, "PRIOR_SCALES", scales)
        for seed in range(10):
            scores, truth = overconfident(600, seed=seed, offset=CALIBRATED)
            found = apply_labels(scores, some_labels(truth, 10, seed=seed + 100))
            assert found.noise_rate is not None
            changes.setdefault(scales, []).append(abs(found.noise_rate.estimate - (1 - truth.mean())))
    assert np.mean(changes[PRIOR_SCALES]) < 0.6 * np.mean(changes[1.0,])
    assert np.mean(changes[PRIOR_SCALES]) < 0.04


WRONG_TWINS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "labels reversed": lambda x, y: fit_labels(x, 1 - y)[-1].mean,
    "no prior": lambda x, y: fit_labels(np.tile(x, (1000, 1)), np.tile(y, 1000))[-1].mean,
    "prior only": lambda x, y: PRIOR_MEAN,
    "without the trend": lambda x, y: fit_labels(x * [1, 0, 1], y)[-1].mean,
}


@pytest.mark.parametrize("twin", WRONG_TWINS.values(), ids=WRONG_TWINS.keys())
def test_the_search_rejects_a_wrong_twin(twin: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    scores, truth = overconfident(40)
    features = label_features(scores.match_prob, rank_only=False)
    best = best_by_search(features.tolist(), truth.tolist())
    assert (
        log_posterior(features.tolist(), truth.tolist(), best)
        > log_posterior(features.tolist(), truth.tolist(), twin(features, truth).tolist()) + 1e-6
    )


def test_without_labels_nothing_changes() -> None:
    scores, truth = overconfident(100)
    assert apply_labels(scores, np.full(len(truth), MISSING)) is scores


def test_labelled_pairs_have_the_probability_of_their_label() -> None:
    scores, truth = overconfident()
    label = some_labels(truth, 50)
    found = apply_labels(scores, label)
    known = label != MISSING
    np.testing.assert_array_equal(found.match_prob[known], label[known])
    assert ((found.match_prob[~known] > 0) & (found.match_prob[~known] < 1)).all()


def test_two_hundred_labels_correct_the_rate_and_the_calibration_of_overconfident_scores() -> None:
    scores, truth = overconfident()
    before = scores.noise_rate
    assert before is not None
    assert before.estimate < 0.25  # the premise: 40 % mismatch
    found = apply_labels(scores, some_labels(truth, 200))
    rate = found.noise_rate
    assert rate is not None
    assert rate.low <= 1 - truth.mean() <= rate.high
    assert rate.high - rate.low < 0.25
    unknown = some_labels(truth, 200) == MISSING
    lowest = np.flatnonzero(unknown & (found.match_prob < 0.1))
    assert len(lowest) > 100
    assert abs((1 - found.match_prob[lowest]).mean() - (1 - truth[lowest]).mean()) < 0.05


def test_the_interval_covers_the_rate_in_most_draws_and_narrows_with_labels() -> None:
    covered, widths = 0, {}
    for seed in range(20):
        scores, truth = overconfident(600, seed=seed)
        for count in (30, 200):
            rate = apply_labels(scores, some_labels(truth, count, seed=seed + 100)).noise_rate
            assert rate is not None
            widths.setdefault(count, []).append(rate.high - rate.low)
            covered += count == 200 and rate.low <= 1 - truth.mean() <= rate.high
    assert covered >= 18
    assert np.mean(widths[200]) < 0.7 * np.mean(widths[30])


def test_the_order_of_pairs_without_a_label_stays() -> None:
    scores, truth = overconfident()
    label = some_labels(1 - truth, 60)  # labels against the scores: slope and trend would be negative
    found, unknown = apply_labels(scores, label).match_prob, label == MISSING
    order = np.argsort(scores.match_prob[unknown], kind="stable")
    assert (np.diff(found[unknown][order]) >= -1e-12).all()


def test_labels_chosen_by_score_do_not_bias_the_rate() -> None:
    scores, truth = overconfident(4000)
    label = np.full(len(truth), MISSING)
    borderline = np.argsort(np.abs(scores.match_prob - 0.5))[:300]
    label[borderline] = truth[borderline]
    rate = apply_labels(scores, label).noise_rate
    assert rate is not None
    assert rate.low <= 1 - truth.mean() <= rate.high


def test_ranks_become_probabilities_with_enough_labels_of_both_kinds() -> None:
    scores, truth = overconfident()
    ranks = np.argsort(np.argsort(scores.match_prob)) / len(truth)
    scores = replace(scores, match_prob=ranks, noise_rate=None, note="the scores only put the pairs in order")
    few, one_kind = some_labels(truth, MIN_LABELS - 1), np.where(truth == 1, 1, MISSING)
    assert apply_labels(scores, few).noise_rate is None
    assert apply_labels(scores, one_kind).noise_rate is None
    found = apply_labels(scores, some_labels(truth, 200))
    assert found.noise_rate is not None
    assert found.note == ""
    assert found.noise_rate.low <= 1 - truth.mean() <= found.noise_rate.high


def test_pairs_without_a_score_are_not_touched() -> None:
    scores, truth = overconfident(100)
    scores.fold[:10] = MISSING
    label = np.where(np.arange(100) < 20, truth, MISSING)
    found = apply_labels(scores, label)
    np.testing.assert_array_equal(found.match_prob[:10], scores.match_prob[:10])
