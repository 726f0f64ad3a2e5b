"""Splitting pairs by their losses: the mixture against scikit-learn, the rule by hand, awkward losses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from sremkit.methods.common.mixtures import _lower_cluster, lower_gaussian_probability, rescaled, split_clean


def losses(low: int = 600, high: int = 400, gap: float = 0.35, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    parts = np.concatenate([rng.gamma(2.0, 0.04, low), gap + 0.12 * rng.standard_normal(high)])
    return rescaled(torch.from_numpy(parts))


def scikit_learns_posterior(values: torch.Tensor, **start: np.ndarray) -> np.ndarray:
    theirs = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0, **start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten steps may end before it has settled; so be it
        theirs.fit(values.numpy()[:, None])
    return theirs.predict_proba(values.numpy()[:, None])[:, theirs.means_[:, 0].argmin()]


@pytest.mark.parametrize("gap", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("low", [300, 600, 1500])
def test_from_the_same_start_the_posterior_is_that_of_scikit_learn(gap: float, low: int) -> None:
    values = losses(low=low, gap=gap)
    lower = _lower_cluster(values)
    parts = [values[lower].numpy(), values[~lower].numpy()]
    expected = scikit_learns_posterior(
        values,
        weights_init=np.array([len(part) for part in parts]) / len(values),
        means_init=np.array([[part.mean()] for part in parts]),
        precisions_init=np.array([[[1 / (part.var() + 5e-4)]] for part in parts]),
    )
    np.testing.assert_allclose(lower_gaussian_probability(values), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_from_their_own_start_both_split_alike(seed: int) -> None:
    # Their start is k-means from random centres, which may stop a few values from the exact division.
    values = losses(seed=seed)
    expected = scikit_learns_posterior(values)
    found = lower_gaussian_probability(values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05)
    assert np.mean((found.numpy() > 0.5) == (expected > 0.5)) > 0.99


def test_more_steps_change_the_answer_so_the_published_number_is_used() -> None:
    values = losses(gap=0.3)
    settled = lower_gaussian_probability(values, iterations=500, tolerance=1e-9)
    assert (settled - lower_gaussian_probability(values)).abs().max() > 0.01


def test_the_first_division_is_the_best_of_all() -> None:
    values = losses(low=30, high=20, seed=3)

    def squares(part: torch.Tensor) -> float:
        return float((part - part.mean()).square().sum())

    cuts = values.sort().values[:-1]
    best = min(squares(values[values <= cut]) + squares(values[values > cut]) for cut in cuts)
    lower = _lower_cluster(values)
    assert squares(values[lower]) + squares(values[~lower]) == pytest.approx(best, rel=1e-12)


def test_stretched_runs_from_0_to_1() -> None:
    assert rescaled(torch.tensor([3.0, 1.0, 2.0])).tolist() == [1.0, 0.0, 0.5]
    assert rescaled(torch.full((5,), 0.2)).tolist() == [0.0] * 5


def test_equal_losses_do_no_harm() -> None:
    assert torch.isfinite(lower_gaussian_probability(rescaled(torch.ones(50)))).all()


def test_pairs_above_a_half_are_clean() -> None:
    assert split_clean(torch.tensor([0.9, 0.5, 0.51, 0.1])).tolist() == [True, False, True, False]


def test_where_all_seem_clean_a_hundredth_is_noisy_all_the_same() -> None:
    probability = torch.linspace(0.6, 0.9, 300)
    # 300 // 100 = 3: the published threshold is the value with number 3 from below, and who equals it is out.
    assert split_clean(probability).nonzero().squeeze(1).tolist() == list(range(4, 300))
    # All equal: the published comparison with that value would leave none.
    assert split_clean(torch.ones(300)).sum().item() == 296
