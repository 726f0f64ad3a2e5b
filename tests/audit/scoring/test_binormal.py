"""The binormal mixture: its posterior, and that what it says holds."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import binormal as oracle
from sremkit.audit.scoring import binormal as module
from sremkit.audit.scoring.binormal import DEVIATION, DEVIATION_SPREAD, EDGES, fit_binormal, normal_scale


def sample(rate: float, mean: float, deviation: float, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Given pairs on the normal scale, and which of them mismatch."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(count) < rate
    return np.where(is_wrong, rng.normal(size=count), rng.normal(mean, deviation, count)), is_wrong


def test_a_worked_example_of_the_normal_scale() -> None:
    # Of the null values 0, 1, 2 one and a half lie below 1, so it is in the middle; 3 lies above all: 3.5 of 4.
    np.testing.assert_allclose(normal_scale(np.array([1.0, 3.0]), np.array([0.0, 1.0, 2.0])), [0.0, 1.1503], atol=1e-4)


def test_the_null_distribution_itself_becomes_standard_normal() -> None:
    null = np.random.default_rng(0).exponential(size=20_000)
    y = normal_scale(np.random.default_rng(1).exponential(size=20_000), null)
    assert (y.mean(), y.std()) == pytest.approx((0, 1), abs=0.02)


def test_the_posterior_is_that_of_the_oracle(monkeypatch) -> None:
    monkeypatch.setattr(module, "EDGES", np.linspace(-2, 3, 11))
    y, _ = sample(0.3, 2.0, 0.9, 200)
    found = fit_binormal(y, effective=150)
    edges = module.EDGES
    counts = (np.bincount(np.searchsorted(edges, y), minlength=12) * 0.75).tolist()
    grids = np.linspace(0, 1, 41), np.linspace(0.5, 4.0, 26), np.linspace(0.5, 1.4, 19)
    rate, mismatch = oracle.posterior(
        counts, edges.tolist(), *(grid.tolist() for grid in grids), deviation=DEVIATION, spread=DEVIATION_SPREAD
    )
    assert found.rate == pytest.approx(rate, abs=0.003)
    np.testing.assert_allclose(found.mismatch_prob, np.minimum.accumulate(mismatch), atol=0.01)
    other, _ = oracle.posterior(  # all pairs counted as independent: another posterior
        [count / 0.75 for count in counts], edges.tolist(), *(grid.tolist() for grid in grids),
        deviation=DEVIATION, spread=DEVIATION_SPREAD,
    )  # fmt: skip
    assert abs(found.rate - other) > 0.0005


@pytest.mark.parametrize(("rate", "mean", "deviation"), [(0.1, 2.6, 0.7), (0.4, 1.6, 1.0), (0.6, 2.0, 0.8)])
def test_many_pairs_determine_the_rate_and_every_probability(rate: float, mean: float, deviation: float) -> None:
    y, is_wrong = sample(rate, mean, deviation, 100_000)
    found = fit_binormal(y, effective=len(y))
    assert found.rate == pytest.approx(is_wrong.mean(), abs=0.006)
    assert found.rate_quantile(0.975) - found.rate_quantile(0.025) < 0.03
    step = EDGES[1] - EDGES[0]
    for place in (EDGES - step / 2)[8:60:6]:  # the middles of bins
        null = oracle.phi(place + step / 2) - oracle.phi(place - step / 2)
        ends = ((place + sign * step / 2 - mean) / deviation for sign in (1, -1))
        matched = oracle.phi(next(ends)) - oracle.phi(next(ends))
        expected = rate * null / (rate * null + (1 - rate) * matched)
        assert found.at(np.array([place]))[0] == pytest.approx(expected, abs=0.03)


def test_what_few_pairs_say_is_as_uncertain_as_it_should_be() -> None:
    """Of collections drawn from the prior, 95 % have their rate inside the interval, and P(mismatch) is calibrated."""
    rng = np.random.default_rng(0)
    inside, said, wrong = [], [], []
    for seed in range(200):
        rate, mean = rng.uniform(0, 1), rng.uniform(0.5, 5.0)
        y, is_wrong = sample(rate, mean, rng.normal(DEVIATION, DEVIATION_SPREAD), 400, seed)
        found = fit_binormal(y, effective=400)
        inside.append(found.rate_quantile(0.025) <= rate <= found.rate_quantile(0.975))
        said.append(found.at(y))
        wrong.append(is_wrong)
    assert 0.9 <= np.mean(inside) <= 0.99
    probability, truth = np.concatenate(said), np.concatenate(wrong)
    for low, high in ((0, 0.1), (0.1, 0.4), (0.4, 0.6), (0.6, 0.9), (0.9, 1.01)):
        chosen = (probability >= low) & (probability < high)
        assert chosen.sum() > 1000
        assert truth[chosen].mean() == pytest.approx(
            probability[chosen].mean(), abs=0.05
        )  # 200 collections, not 80,000 pairs


def test_a_deviation_that_is_taken_for_known_misleads(monkeypatch) -> None:
    """The reason for the third parameter: matched pairs of a good model spread less, those of a bad one more."""
    y, is_wrong = sample(0.3, 1.8, 0.7, 20_000)
    assert fit_binormal(y, effective=len(y)).rate == pytest.approx(is_wrong.mean(), abs=0.02)
    monkeypatch.setattr(module, "DEVIATION", 1.2)
    monkeypatch.setattr(module, "DEVIATION_SPREAD", 0.001)
    assert fit_binormal(y, effective=len(y)).rate < is_wrong.mean() - 0.05


def test_fewer_independent_pairs_leave_a_wider_interval() -> None:
    y, _ = sample(0.3, 2.0, 0.9, 2_000)
    wide, narrow = (fit_binormal(y, effective=n) for n in (200, 2_000))
    widths = [f.rate_quantile(0.975) - f.rate_quantile(0.025) for f in (wide, narrow)]
    assert 2 < widths[0] / widths[1] < 5  # sqrt(10) for normal errors


def test_matched_pairs_below_the_median_are_counted() -> None:
    y, is_wrong = sample(0.3, 1.2, 1.0, 50_000)
    found = fit_binormal(y, effective=len(y))
    assert found.low_matched == pytest.approx((~is_wrong & (y < 0)).mean(), abs=0.01)
    assert found.low_matched > 0.05  # else the comparison would say nothing


def test_without_mismatches_the_rate_is_nothing() -> None:
    found = fit_binormal(sample(0.0, 2.0, 0.9, 20_000)[0], effective=20_000)
    assert found.rate < 0.001


@pytest.mark.parametrize("count", [0, 1, 30])
def test_few_pairs_give_probabilities_that_fall_with_the_statistic(count: int) -> None:
    found = fit_binormal(sample(0.5, 2.0, 0.9, count)[0], effective=max(count, 1))
    at = found.at(np.linspace(-8, 8, 200))
    assert (np.diff(at) <= 0).all()
    assert at.min() >= 0
    assert at.max() <= 1
