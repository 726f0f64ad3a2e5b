"""The mixture of two betas: against loops, against what made the numbers, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import bicro as oracle
from sremkit.methods.common.mixtures import TwoBetas, fit_two_betas


def drawn(low: int = 700, high: int = 300, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.concatenate([rng.beta(1.5, 8, low), rng.beta(9, 3, high)]))


@pytest.mark.parametrize("iterations", [1, 10])
def test_em_is_the_oracles(iterations: int) -> None:
    values = drawn(70, 30)
    weight, alpha, beta = oracle.two_betas(values.tolist(), iterations)
    mixture = fit_two_betas(values, iterations=iterations)
    for found, expected in ((mixture.weight, weight), (mixture.alpha, alpha), (mixture.beta, beta)):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_it_finds_what_made_the_numbers() -> None:
    mixture = fit_two_betas(drawn(7000, 3000), iterations=200)
    assert mixture.weight[0].item() == pytest.approx(0.7, abs=0.02)
    assert mixture.mean.tolist() == pytest.approx([1.5 / 9.5, 9 / 12], abs=0.02)


def test_the_first_component_is_the_lower_one_whatever_happened() -> None:
    values = drawn(20, 80)
    assert fit_two_betas(values).mean.diff() > 0
    lower = fit_two_betas(values).lower_probability(values)
    assert lower[:20].mean() > 0.8
    assert lower[20:].mean() < 0.2


def test_probability_by_hand() -> None:
    # Beta(1, 2) has density 2 (1 - x), Beta(2, 1) has 2 x: at x = 1/4 the first has 1.5 of 1.5 + 0.5.
    mixture = TwoBetas(*(torch.tensor(v, dtype=torch.float64) for v in ([0.5, 0.5], [1.0, 2.0], [2.0, 1.0])))
    assert mixture.lower_probability(torch.tensor([0.25, 0.5])).tolist() == pytest.approx([0.75, 0.5])


def test_a_larger_loss_is_never_likelier_clean() -> None:
    # Beta(0.4, 0.5) is steep at both ends: by densities alone the largest values would belong to the lower component.
    # Beta(30, 40) and Beta(6, 8.2) have nearly one mean: by densities alone the smallest would be the upper's.
    for alpha, beta in (([0.4, 2.6], [0.5, 2.9]), ([30.0, 6.0], [40.0, 7.9])):
        mixture = TwoBetas(*(torch.tensor(v, dtype=torch.float64) for v in ([0.7, 0.3], alpha, beta)))
        assert mixture.mean.diff() > 0
        values = torch.linspace(0, 1, 101, dtype=torch.float64)
        order = torch.randperm(101, generator=torch.Generator().manual_seed(0))
        assert (mixture.responsibility(values)[:, 0].diff() > 0).any()
        lower = mixture.lower_probability(values)
        assert (lower.diff() <= 0).all()
        assert lower[0] >= lower[int(mixture.mean[0] * 100)] > lower[-1]
        torch.testing.assert_close(mixture.lower_probability(values[order]), lower[order])


def test_losses_of_exactly_0_and_1_and_equal_ones_do_no_harm() -> None:
    # The published code asks the densities at 0 and 1, which are infinite or 0, and gets NaN for such pairs.
    values = torch.cat([torch.zeros(3), drawn(70, 30), torch.ones(3)])
    lower = fit_two_betas(values).lower_probability(values)
    assert (lower[:3] > 0.5).all()
    assert (lower[-3:] < 0.5).all()
    equal = fit_two_betas(torch.zeros(50))
    assert (equal.alpha < 10).all()  # held to a width of 1e-4 at 1e-4, instead of no width at all
    assert torch.isfinite(equal.lower_probability(torch.zeros(50))).all()


def test_a_value_far_from_both_components_is_undecided() -> None:
    # Two needles at 0.25 and 0.75: at 1/2 both densities are far below the floor.
    needles = ([0.5, 0.5], [2500.0, 7500.0], [7500.0, 2500.0])
    mixture = TwoBetas(*(torch.tensor(v, dtype=torch.float64) for v in needles))
    assert mixture.lower_probability(torch.tensor([0.25, 0.5, 0.75])).tolist() == pytest.approx([1, 0.5, 0])
