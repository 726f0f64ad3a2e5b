"""Dividing pairs by their losses: the mixture against scikit-learn, the rule by hand, awkward losses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from sremkit.methods.division import _lower_heap, lower_normal, select, stretched


def losses(low: int = 600, high: int = 400, gap: float = 0.35, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    heaps = np.concatenate([rng.gamma(2.0, 0.04, low), gap + 0.12 * rng.standard_normal(high)])
    return stretched(torch.from_numpy(heaps))


def scikit_learns_belief(values: torch.Tensor, **start: np.ndarray) -> np.ndarray:
    theirs = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0, **start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten steps may end before it has settled; so be it
        theirs.fit(values.numpy()[:, None])
    return theirs.predict_proba(values.numpy()[:, None])[:, theirs.means_[:, 0].argmin()]


@pytest.mark.parametrize("gap", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("low", [300, 600, 1500])
def test_from_the_same_start_it_believes_what_scikit_learn_believes(gap: float, low: int) -> None:
    values = losses(low=low, gap=gap)
    lower = _lower_heap(values)
    heaps = [values[lower].numpy(), values[~lower].numpy()]
    expected = scikit_learns_belief(
        values,
        weights_init=np.array([len(heap) for heap in heaps]) / len(values),
        means_init=np.array([[heap.mean()] for heap in heaps]),
        precisions_init=np.array([[[1 / (heap.var() + 5e-4)]] for heap in heaps]),
    )
    np.testing.assert_allclose(lower_normal(values), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_left_to_themselves_both_divide_alike(seed: int) -> None:
    # Their start is k-means from random centres, which may stop a few values from the exact division.
    values = losses(seed=seed)
    expected = scikit_learns_belief(values)
    found = lower_normal(values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05)
    assert np.mean((found.numpy() > 0.5) == (expected > 0.5)) > 0.99


def test_more_steps_change_the_answer_so_the_published_number_is_heard() -> None:
    values = losses(gap=0.3)
    settled = lower_normal(values, iterations=500, tolerance=1e-9)
    assert (settled - lower_normal(values)).abs().max() > 0.01


def test_the_first_division_is_the_best_of_all() -> None:
    values = losses(low=30, high=20, seed=3)

    def squares(part: torch.Tensor) -> float:
        return float((part - part.mean()).square().sum())

    cuts = values.sort().values[:-1]
    best = min(squares(values[values <= cut]) + squares(values[values > cut]) for cut in cuts)
    lower = _lower_heap(values)
    assert squares(values[lower]) + squares(values[~lower]) == pytest.approx(best, rel=1e-12)


def test_stretched_runs_from_0_to_1() -> None:
    assert stretched(torch.tensor([3.0, 1.0, 2.0])).tolist() == [1.0, 0.0, 0.5]
    assert stretched(torch.full((5,), 0.2)).tolist() == [0.0] * 5


def test_equal_losses_do_no_harm() -> None:
    assert torch.isfinite(lower_normal(stretched(torch.ones(50)))).all()


def test_pairs_above_a_half_are_clean() -> None:
    assert select(torch.tensor([0.9, 0.5, 0.51, 0.1])).tolist() == [True, False, True, False]


def test_where_all_seem_clean_a_hundredth_is_noisy_all_the_same() -> None:
    probability = torch.linspace(0.6, 0.9, 300)
    # 300 // 100 = 3: the published threshold is the value with number 3 from below, and who equals it is out.
    assert select(probability).nonzero().squeeze(1).tolist() == list(range(4, 300))
    # All equal: the published comparison with that value would leave nobody.
    assert select(torch.ones(300)).sum().item() == 296
