"""Density-ratio calibration: it finds the noise rate, and its probabilities are calibrated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import density_ratio as oracle
from sremkit.audit.scoring.calibration import (
    auroc,
    calibrate,
    estimate_rate,
    fit_density_ratio,
    isotonic_ratio,
)

MASSES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=12)


def sample(rate: float, *, match_mean: float = 4.0, count: int = 20_000, seed: int = 0):
    """Statistics of given pairs, the truth, and statistics of negatives: normals a distance apart."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(count) < rate
    given_ = rng.normal(size=count) + np.where(is_wrong, 0.0, match_mean)
    return given_, is_wrong, rng.normal(size=5 * count)


@settings(deadline=None, derandomize=True)
@given(MASSES)
def test_the_ratio_is_the_isotonic_one(masses: list[tuple[int, int]]) -> None:
    given_mass, null_mass = (np.array(column, dtype=float) for column in zip(*masses, strict=True))
    place = np.arange(len(masses), dtype=float)
    found_at, block_given, block_null = isotonic_ratio(given_mass, null_mass, place)
    expected = oracle.isotonic_ratio(given_mass.tolist(), null_mass.tolist())
    # Blocks hold all that was given, and take the distinct values of the oracle in order.
    np.testing.assert_allclose(block_given / block_null, np.unique(np.round(expected, 12)), rtol=1e-10)
    assert block_given.sum() == given_mass.sum()
    assert block_null.sum() == null_mass.sum()
    assert (np.diff(found_at) > 0).all()


def test_a_worked_example_of_the_ratio() -> None:
    # Ratios 1/4, 0/2, 3/2, 4/1: the second is below the first, so both pool to 1/6; the rest rises already.
    # The pooled block lies at the mean of its places weighted by mass: (5 * 0 + 2 * 1) / 7.
    place, block_given, block_null = isotonic_ratio(np.array([1.0, 0, 3, 4]), np.array([4.0, 2, 2, 1]), np.arange(4.0))
    np.testing.assert_allclose(block_given, [1, 3, 4])
    np.testing.assert_allclose(block_null, [6, 2, 1])
    np.testing.assert_allclose(place, [2 / 7, 2, 3])


def test_a_worked_example_of_the_rate() -> None:
    # Bins hold 10 % of the null distribution each, so wrong pairs add 4 % of the given ones a bin at a rate of 0.4; the
    # right ones are all in the last bin. So the ratio is 0.4 in every bin that is looked at.
    given_mass = np.array([0.04] * 9 + [0.64])
    found = estimate_rate(given_mass, np.full(10, 0.1), num_given=1e6)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.4, 0.4, 0.4), abs=1e-9)


def test_overlapping_components_are_extrapolated_to_the_low_end() -> None:
    # r = 0.2 + 0.8 * 2 q, whose mean over [0, 1] is 1: right pairs appear from the start, twice as dense at the top.
    edges = np.linspace(0, 1, 51)
    given_mass = np.diff(0.2 * edges + 0.8 * edges**2)
    found = estimate_rate(given_mass, np.full(50, 0.02), num_given=1e6)
    assert found.estimate == pytest.approx(0.2, abs=1e-6)
    # Counted below the lowest quantile without extrapolation it would be 0.2 + 0.8 * 0.04, and worse above.


def test_few_pairs_leave_room_for_other_rates() -> None:
    edges = np.linspace(0, 1, 51)
    given_mass = np.diff(0.2 * edges + 0.8 * edges**2)
    wide, narrow = (estimate_rate(given_mass, np.full(50, 0.02), num_given=n) for n in (300, 1e6))
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)


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
    assert same.share.estimate == pytest.approx(1.0)
    assert np.isfinite(same.match_prob(np.zeros(3))).all()
    apart = fit_density_ratio(np.ones(50), np.zeros(80))
    assert apart.share.estimate == 0.0
    assert apart.match_prob(np.array([1.0])) == pytest.approx(1.0)


def test_auroc_counts_a_tie_half() -> None:
    # Of four comparisons 1 > 0 is won, 1 against 1 is a tie, and 2 beats both: (1 + 0.5 + 1 + 1) / 4.
    assert auroc(np.array([1.0, 2.0]), np.array([0.0, 1.0])) == 3.5 / 4


def test_equal_statistics_get_equal_scores_with_and_without_a_density_ratio() -> None:
    for count, calibrated in ((200, False), (600, True)):
        given_, _, wrong = sample(0.3, count=count)
        given_[100] = given_[7]
        numbers = np.arange(count), np.arange(len(wrong))
        calibration = calibrate(given_, wrong, *numbers, seed=0)
        assert (calibration.ratio is not None) == calibrated
        score = calibration.score(given_)
        assert score[100] == score[7]
        assert len(np.unique(score)) == count - 1  # and all others differ
