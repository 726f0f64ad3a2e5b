"""The noisy-gradient ratio, and the observer of a training with the ground truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from logit_cases import WORKED, random_flags, random_logits
from sremkit import SREM
from sremkit.data.batch import Batch
from sremkit.evaluation.noise_observer import NoiseObserver, noisy_gradient_ratio, positive_gradients
from sremkit.objectives import Loss, PairReport


def pulls(F: torch.Tensor, **settings) -> torch.Tensor:
    """-dL_w/dS_ii of both directions, by autograd, times the number of clean pairs: the used weights."""
    only_ranking = {"energy_weight": 0.0, "complementary": False}
    total = torch.zeros(len(F), dtype=torch.float64)
    for x in (F, F.T):
        out = SREM(**only_ranking, **settings)(x)
        leaf = x.detach().clone().requires_grad_()
        scores = leaf.sigmoid()
        hard = (scores - 9 * torch.eye(len(F))).amax(1)
        hinge = (0.2 - out.weight_t2i * scores.diagonal() + hard).relu()
        (by_logits,) = torch.autograd.grad(hinge[out.clean_i2t].sum(), leaf)
        total += -(by_logits / (scores * (1 - scores))).diagonal().detach()
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_ratio_is_the_share_of_positive_gradients_on_wrong_pairs(seed: int) -> None:
    F, wrong = random_logits(20, seed=seed, scale=1.0, lift=1.8) - 1, random_flags(20, seed=seed)
    pull = pulls(F)
    expected = (pull[wrong].sum() / pull.sum()).item()
    assert 0 < expected < 1
    assert noisy_gradient_ratio(SREM()(F), wrong) == pytest.approx(expected, rel=1e-10)


def test_the_ratio_of_the_worked_logits() -> None:
    # Clean rows 0 and 2, clean column 0, all inside the hinge. Rows are pulled by the weights of the columns:
    # column 0 (5, 2, 1)/8 and column 2 (1, 5, 3)/9; column 0 by the weight of row 0 (5, 2, 1)/8.
    def weight(*parts: int) -> float:
        return 1 + sum(x / sum(parts) * math.log(x / sum(parts)) for x in parts) / math.log(3)

    on_pair_0, on_pair_2 = 2 * weight(5, 2, 1), weight(1, 5, 3)
    out = SREM()(WORKED)
    last = torch.tensor([False, False, True])
    assert noisy_gradient_ratio(out, last) == pytest.approx(on_pair_2 / (on_pair_0 + on_pair_2), rel=1e-10)
    assert noisy_gradient_ratio(out, ~last) == pytest.approx(on_pair_0 / (on_pair_0 + on_pair_2), rel=1e-10)


def test_the_swapped_weight_is_the_one_that_counts() -> None:
    F, wrong = random_logits(20, scale=1.0, lift=1.8) - 1, random_flags(20)
    out = SREM()(F)
    unswapped = out.active_i2t * out.weight_i2t + out.active_t2i * out.weight_t2i
    wrong_twin = (unswapped[wrong].sum() / unswapped.sum()).item()
    assert abs(noisy_gradient_ratio(out, wrong) - wrong_twin) > 1e-5  # other tests require 1e-10


def test_without_positive_gradients_the_ratio_is_zero() -> None:
    wrong = torch.ones(4, dtype=torch.bool)
    assert noisy_gradient_ratio(SREM()(torch.zeros(4, 4)), wrong) == 0
    assert noisy_gradient_ratio(SREM()(random_logits(4), warmup=True), wrong) == 0
    assert positive_gradients(None, wrong).tolist() == [0, 0]


def test_batches_add_up_by_their_gradients_and_not_by_their_ratios() -> None:
    found, expected = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    for seed, size in ((0, 8), (1, 30)):
        F, wrong = random_logits(size, seed=seed, scale=1.0, lift=1.8) - 1, random_flags(size, seed=seed)
        found = found + positive_gradients(SREM()(F).report, wrong)
        expected = expected + torch.stack([pulls(F)[wrong].sum(), pulls(F).sum()])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def observed(report: PairReport | None, pull: torch.Tensor | None = None) -> tuple[NoiseObserver, Batch]:
    """An observer after one batch of four pairs, of which the last two are wrong."""
    observer = NoiseObserver(np.array([0, 1, 2, 3]))
    batch = Batch(pair_id=torch.arange(4), image_id=torch.tensor([0, 1, 3, 2]), images=torch.zeros(4, 1))
    observer.step(batch, Loss(torch.tensor(0.0), {}, report=report), pull)
    return observer, batch


def test_a_report_once_per_pair_is_observed() -> None:
    """As of methods that select and weight pairs once, not once per direction."""
    clean, weight = torch.tensor([True, True, True, False]), torch.tensor([1.0, 0.5, 0.5, 0.25])
    observer, _ = observed(PairReport(clean=clean, weight=weight, active=clean))
    assert observer.finish_epoch() == {"selected_wrong": pytest.approx(1 / 3), "noisy_gradient_ratio": 0.25}
    assert observer.finish_epoch() == {}


def test_a_report_of_the_selection_alone_has_no_gradient_ratio() -> None:
    clean = torch.tensor([True, False, True, True])
    observer, _ = observed(PairReport(clean=(clean, ~clean)))
    assert observer.finish_epoch() == {"selected_wrong": 0.5}


def test_without_a_report_only_the_pull_is_observed() -> None:
    observer, _ = observed(None, pull=torch.tensor([1.0, 1.0, 2.0, 4.0]))
    assert observer.finish_epoch() == {"noisy_pull_ratio": 0.75}


@pytest.mark.parametrize("reports_weights", [False, True])
def test_the_state_of_an_observer_continues(reports_weights: bool) -> None:
    clean = torch.tensor([True, True, True, False])
    report = PairReport(clean=clean, weight=clean.float(), active=clean) if reports_weights else PairReport(clean)
    observer, batch = observed(report)
    resumed = NoiseObserver(np.array([0, 1, 2, 3]))
    resumed.load_state(observer.state())
    for one in (observer, resumed):
        one.step(batch, Loss(torch.tensor(0.0), {}, report=report))
    assert resumed.finish_epoch() == observer.finish_epoch()
