"""The share of the ranking's pull that falls on wrong pairs."""

from __future__ import annotations

import math

import pytest
import torch

from logit_cases import WORKED, random_flags, random_logits
from sremkit import SREM
from sremkit.evaluation.gradients import NoisyGradients, noisy_gradient_ratio


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
    assert abs(noisy_gradient_ratio(out, wrong) - wrong_twin) > 1e-5  # other tests ask for 1e-10


def test_without_positive_gradients_the_ratio_is_zero() -> None:
    wrong = torch.ones(4, dtype=torch.bool)
    assert noisy_gradient_ratio(SREM()(torch.zeros(4, 4)), wrong) == 0
    assert noisy_gradient_ratio(SREM()(random_logits(4), warmup=True), wrong) == 0
    assert NoisyGradients().ratio() == 0


def test_batches_add_up_by_their_gradients_and_not_by_their_ratios() -> None:
    many = NoisyGradients()
    shares = []
    for seed, size in ((0, 8), (1, 30)):
        F, wrong = random_logits(size, seed=seed, scale=1.0, lift=1.8) - 1, random_flags(size, seed=seed)
        many.update(SREM()(F), wrong)
        shares.append((pulls(F)[wrong].sum(), pulls(F).sum()))
    expected = sum(noisy for noisy, _ in shares) / sum(whole for _, whole in shares)
    assert many.ratio() == pytest.approx(expected.item(), rel=1e-10)


def test_a_stopped_count_goes_on_where_it_stopped() -> None:
    F, wrong = random_logits(20, scale=1.0, lift=1.8) - 1, random_flags(20)
    whole, first, second = NoisyGradients(), NoisyGradients(), NoisyGradients()
    whole.update(SREM()(F), wrong)
    whole.update(SREM()(-F), ~wrong)
    first.update(SREM()(F), wrong)
    second.load_state(first.state())
    second.update(SREM()(-F), ~wrong)
    assert second.ratio() == pytest.approx(whole.ratio(), rel=1e-12)
