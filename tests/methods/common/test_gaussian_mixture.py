"""The Gaussian mixture: against scikit-learn, by hand, and in awkward cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from sremkit.methods.common.mixtures import TwoGaussians, fit_two_gaussians


def two_components(low: int = 600, high: int = 400, gap: float = 4.0, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.concatenate([rng.normal(0, 1, low), rng.normal(gap, 0.7, high)]))


@pytest.mark.parametrize("gap", [2.5, 4.0, 8.0])
@pytest.mark.parametrize("low", [200, 600, 1500])
def test_it_finds_what_scikit_learn_finds(gap: float, low: int) -> None:
    values = two_components(low=low, gap=gap)
    ours = fit_two_gaussians(values, iterations=1000, tolerance=1e-12)
    theirs = GaussianMixture(2, tol=1e-10, max_iter=2000, n_init=3, random_state=0, reg_covar=0)
    theirs.fit(values.numpy()[:, None])
    order = theirs.means_[:, 0].argsort()
    np.testing.assert_allclose(ours.mean, theirs.means_[order, 0], rtol=0, atol=2e-3)
    np.testing.assert_allclose(ours.weight, theirs.weights_[order], rtol=0, atol=2e-3)
    np.testing.assert_allclose(ours.deviation**2, theirs.covariances_[order, 0, 0], rtol=0, atol=5e-3)


def test_probability_by_hand() -> None:
    # Equal weights and widths, means 0 and 2: at 1 it is even; at 2 the log ratio is (4 - 0) / 2 = 2.
    mixture = TwoGaussians(*(torch.tensor(v, dtype=torch.float64) for v in ([0.5, 0.5], [0.0, 2.0], [1.0, 1.0])))
    even, upper = mixture.upper_probability(torch.tensor([1.0, 2.0]))
    assert even.item() == pytest.approx(0.5)
    assert upper.item() == pytest.approx(1 / (1 + math.exp(-2)))
    assert mixture.separation == pytest.approx(2.0)


def test_a_larger_value_is_never_less_likely_right() -> None:
    # The lower component is much wider, so its density wins again far above the upper mean.
    mixture = TwoGaussians(*(torch.tensor(v, dtype=torch.float64) for v in ([0.5, 0.5], [0.0, 2.0], [3.0, 0.5])))
    values = torch.linspace(-5, 20, 200)
    probability = mixture.upper_probability(values[torch.randperm(200, generator=torch.Generator().manual_seed(0))])
    in_order = mixture.upper_probability(values)
    assert (in_order.diff() >= 0).all()
    assert in_order[-1] > 0.5
    torch.testing.assert_close(probability.sort().values, in_order)


def test_the_lowest_values_stay_improbable_where_the_upper_component_is_wider() -> None:
    """Its density wins again far below the lower mean; taken at its word, one low value makes every pair right."""
    # At the lower mean 0: log ratio log(1 / 3) - (6 / 3)^2 / 2 = -3.1, so 0.043. Own densities at -5: log(1 / 3)
    # + 25 / 2 - (11 / 3)^2 / 2 = 4.7, so 0.99.
    mixture = TwoGaussians(*(torch.tensor(v, dtype=torch.float64) for v in ([0.5, 0.5], [0.0, 6.0], [1.0, 3.0])))
    values = torch.tensor([-5.0, -1.0, 0.0, 6.0], dtype=torch.float64)
    densities = mixture.log_densities(values)
    assert (densities[0, 1] - densities[0, 0]).sigmoid() > 0.98  # the wrong twin
    probability = mixture.upper_probability(values)
    assert probability[2].item() == pytest.approx(0.0432, abs=1e-4)
    assert (probability[:2] <= probability[2]).all()
    assert probability[3] > 0.99
    many = mixture.upper_probability(torch.linspace(-9, 9, 400))
    assert (many.diff() >= 0).all()
    assert many[0] < 0.05


def test_one_component_has_little_separation_and_two_have_much() -> None:
    one = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    assert fit_two_gaussians(one).separation < 2.2
    assert fit_two_gaussians(two_components()).separation > 4


def test_equal_values_and_outliers_do_no_harm() -> None:
    equal = fit_two_gaussians(torch.ones(50))
    assert torch.isfinite(equal.mean).all()
    assert torch.isfinite(equal.upper_probability(torch.ones(50))).all()
    spiked = fit_two_gaussians(torch.cat([two_components(), torch.tensor([1000.0])]))
    assert torch.isfinite(spiked.deviation).all()


def test_too_few_or_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4 finite values, got 3"):
        fit_two_gaussians(torch.zeros(3))
    with pytest.raises(ValueError, match="finite"):
        fit_two_gaussians(torch.tensor([0.0, 1.0, 2.0, float("nan")]))


@pytest.mark.parametrize("value", [-4.8, 0.0, 3.0])
def test_equal_values_are_one_component(value: float) -> None:
    values = torch.full((500,), value)
    mixture = fit_two_gaussians(values)
    assert mixture.separation == 0.0
    assert mixture.mean.tolist() == pytest.approx([value, value], abs=1e-6)
    assert mixture.weight.sum().item() == pytest.approx(1.0)
    assert mixture.upper_probability(values).min() > 0.999
