"""Density-ratio calibration: it finds the noise rate, and its probabilities are calibrated."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import density_ratio as oracle
from sremkit.audit.scoring.calibration import auroc, calibrate, fit_density_ratio


def sample(rate: float, *, match_mean: float = 4.0, count: int = 20_000, seed: int = 0):
    """Statistics of given pairs, the truth, and statistics of negatives: normals a distance apart."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(count) < rate
    given_ = rng.normal(size=count) + np.where(is_wrong, 0.0, match_mean)
    return given_, is_wrong, rng.normal(size=5 * count)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2, 0.4, 0.6, 0.9, 1.0])
def test_the_rate_is_found(rate: float) -> None:
    given_, _, wrong = sample(rate)
    assert fit_density_ratio(given_, wrong).share.estimate == pytest.approx(rate, abs=0.015)


def test_matched_pairs_alone_have_no_noise() -> None:
    given_, _, wrong = sample(0.0, match_mean=3.0)
    ratio = fit_density_ratio(given_, wrong)
    assert ratio.share.estimate < 0.01
    assert (ratio.match_prob(given_) < 0.5).mean() < 0.01


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6])
def test_the_probabilities_are_those_of_the_true_densities(rate: float) -> None:
    given_, _, wrong = sample(rate, count=100_000)
    ratio = fit_density_ratio(given_, wrong)
    places = np.linspace(0, 4, 9)
    expected = [oracle.match_prob(x, rate, 4.0) for x in places]
    # The densities are estimated: with 100,000 pairs to within a few points where the two components meet.
    np.testing.assert_allclose(ratio.match_prob(places), expected, atol=0.06)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_probabilities_are_calibrated(rate: float) -> None:
    given_, is_wrong, wrong = sample(rate, match_mean=3.0, count=60_000)
    score = fit_density_ratio(given_, wrong).match_prob(given_)
    assert (1 - score).mean() == pytest.approx(is_wrong.mean(), abs=0.01)
    for low, high in ((0.0, 0.2), (0.2, 0.8), (0.8, 1.01)):
        inside = (score >= low) & (score < high)
        assert inside.sum() > 500  # else the comparison would say nothing
        assert score[inside].mean() == pytest.approx(1 - is_wrong[inside].mean(), abs=0.04)


def test_a_mixture_without_the_null_distribution_fails_where_components_are_skewed() -> None:
    """The reason for measuring the null distribution: a log-probability has a long lower tail.

    Pairs with such a tail look like two components to a mixture of normals, even when every pair is wrong or
    none is; the density ratio is not fooled.
    """
    import torch

    from sremkit.methods.common.mixtures import fit_two_gaussians

    rng = np.random.default_rng(0)
    right = 8 - rng.exponential(2.0, 20_000)  # all right, with a tail
    wrong = -rng.exponential(2.0, 100_000)
    blind = fit_two_gaussians(torch.from_numpy(right))
    assert float(blind.weight[0]) > 0.1  # the mixture invents noise
    assert fit_density_ratio(right, wrong).share.estimate < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_a_higher_statistic_is_never_more_suspicious(seed: int) -> None:
    given_, _, wrong = sample(0.3, count=300, seed=seed)
    score = fit_density_ratio(given_, wrong).match_prob(np.linspace(-6, 10, 500))
    assert (np.diff(score) >= 0).all()
    assert score.min() >= 0
    assert score.max() <= 1


def test_distributions_of_one_value_do_not_divide_by_zero() -> None:
    same = fit_density_ratio(np.zeros(50), np.zeros(80))
    assert np.isfinite(same.match_prob(np.zeros(3))).all()
    only_ranks = calibrate(np.zeros(400), np.zeros(800), np.arange(400))
    assert only_ranks.ratio is None
    assert "no better than pairs made at random" in only_ranks.note
    apart = fit_density_ratio(np.ones(50), np.zeros(80))
    assert apart.share.estimate < 1 / 50  # none of 50
    assert apart.match_prob(np.array([1.0])) == pytest.approx(1.0, abs=0.01)


def test_few_pairs_leave_room_for_other_rates() -> None:
    given_, _, wrong = sample(0.3, match_mean=1.5)
    wide, narrow = (fit_density_ratio(given_, wrong, effective=n).share for n in (300, 20_000))
    assert wide.high - wide.low > 4 * (narrow.high - narrow.low)
    assert narrow.low <= 0.3 <= narrow.high


def test_overlapping_components_are_told_apart_by_their_shape() -> None:
    given_, is_wrong, wrong = sample(0.2, match_mean=1.2, count=100_000)
    # Counted below a low quantile of the null distribution, where matched pairs are too, the rate would be higher.
    below = np.quantile(wrong, 0.3)
    assert (given_ < below).mean() / 0.3 > is_wrong.mean() + 0.05
    assert fit_density_ratio(given_, wrong).share.estimate == pytest.approx(is_wrong.mean(), abs=0.015)


def test_auroc_counts_a_tie_half() -> None:
    # Of four comparisons 1 > 0 is won, 1 against 1 is a tie, and 2 beats both: (1 + 0.5 + 1 + 1) / 4.
    assert auroc(np.array([1.0, 2.0]), np.array([0.0, 1.0])) == 3.5 / 4


def test_equal_statistics_get_equal_scores_with_and_without_a_density_ratio() -> None:
    for count, calibrated in ((200, False), (600, True)):
        given_, _, wrong = sample(0.3, count=count)
        given_[100] = given_[7]
        calibration = calibrate(given_, wrong, np.arange(count))
        assert (calibration.ratio is not None) == calibrated
        score = calibration.score(given_)
        assert score[100] == score[7]
        assert len(np.unique(score)) == count - 1  # and all others differ
