"""Generalised cross-entropy against loops, hand values, its two ends and wrong twins."""

from __future__ import annotations

import pytest
import torch

from oracles import contrastive as oracle
from sremkit.objectives.contrastive import generalized_cross_entropy, infonce


def logits(b: int = 7) -> torch.Tensor:
    return torch.randn(b, b, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("power", [0.01, 0.3, 0.7, 1.0])
def test_it_matches_the_oracle(power: float) -> None:
    f = logits()
    got = generalized_cross_entropy(f, power=power)
    torch.testing.assert_close(got, torch.tensor(oracle.generalized(f.tolist(), power), dtype=torch.float64))


def test_by_hand() -> None:
    # Four equal logits: P = 1/4, its root is 1/2, so (1 - 1/2) / (1/2) = 1; at q = 1 it is 3/4.
    equal = torch.zeros(4, 4, dtype=torch.float64)
    assert generalized_cross_entropy(equal, power=0.5).tolist() == pytest.approx([1.0] * 4)
    assert generalized_cross_entropy(equal, power=1.0).tolist() == pytest.approx([0.75] * 4)


def test_at_zero_it_is_infonce_and_close_to_zero_nearly() -> None:
    f = logits()
    torch.testing.assert_close(generalized_cross_entropy(f, power=0.0).mean(), infonce(f))
    nearly = generalized_cross_entropy(f, power=1e-6).mean()
    torch.testing.assert_close(nearly, infonce(f), rtol=1e-5, atol=0)


@pytest.mark.parametrize("power", [0.3, 1.0])
def test_the_gradient_is_that_of_infonce_times_a_power_of_the_probability(power: float) -> None:
    f = logits().requires_grad_()
    (gradient,) = torch.autograd.grad(generalized_cross_entropy(f, power=power).sum(), f)
    (plain,) = torch.autograd.grad(generalized_cross_entropy(f, power=0.0).sum(), f)
    weight = f.detach().softmax(1).diagonal().pow(power)
    torch.testing.assert_close(gradient, plain * weight[:, None])


TWINS = {
    "axis": lambda f: generalized_cross_entropy(f.T, power=0.3),
    "power of the complement": lambda f: (1 - (1 - f.softmax(1).diagonal()) ** 0.3) / 0.3,
    "not divided": lambda f: 0.3 * generalized_cross_entropy(f, power=0.3),
    "negatives": lambda f: (f.softmax(1) ** 0.3 / 0.3).fill_diagonal_(0).sum(1),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    f = logits()
    expected = torch.tensor(oracle.generalized(f.tolist(), 0.3), dtype=torch.float64)
    assert not torch.allclose(twin(f), expected, rtol=1e-6)


def test_masked_candidates_are_excluded() -> None:
    f = logits(3)
    valid = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    without = f.masked_fill(~valid, -1e30)
    torch.testing.assert_close(
        generalized_cross_entropy(f, power=0.5, valid=valid), generalized_cross_entropy(without, power=0.5)
    )


def test_a_hopeless_pair_stays_finite_in_value_and_gradient() -> None:
    f = torch.tensor([[-200.0, 200.0], [0.0, 0.0]], requires_grad=True)
    loss = generalized_cross_entropy(f, power=0.5)
    assert loss.tolist() == pytest.approx([2.0, (1 - 0.5**0.5) / 0.5], rel=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), f)
    assert torch.isfinite(gradient).all()


def test_a_power_out_of_range_raises() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        generalized_cross_entropy(logits(), power=2.0)
