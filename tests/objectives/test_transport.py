"""Partial transport, the re-matching loss and symmetric cross-entropy against loops, by hand, and wrong twins."""

from __future__ import annotations

import math

import pytest
import torch

from oracles import l2rm as oracle
from sremkit.objectives.contrastive import symmetric_cross_entropy
from sremkit.objectives.transport import partial_transport, rematching_loss

EXACT = {"max_iterations": 500, "tolerance": 0.0}


def case(n: int = 5, m: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    cost = torch.rand(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return cost, ~torch.eye(n, m, dtype=torch.bool)


@pytest.mark.parametrize("mass", [0.1, 0.6])
def test_the_plan_matches_the_oracle(mass: float) -> None:
    cost, valid = case()
    expected = oracle.partial_transport(cost.tolist(), mass, 0.2, valid.tolist(), 500)
    found = partial_transport(cost, mass=mass, epsilon=0.2, valid=valid, **EXACT)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-15)


def test_a_plan_by_hand() -> None:
    # Two images, two texts, every match at the same cost: by symmetry the mass in four equal parts.
    found = partial_transport(torch.ones(2, 2, dtype=torch.float64), mass=0.4, epsilon=0.1, **EXACT)
    assert found.flatten().tolist() == pytest.approx([0.1] * 4, rel=1e-12)


def test_the_plan_keeps_its_bounds_and_prefers_cheap_matches() -> None:
    cost, valid = case(6, 4)
    plan = partial_transport(cost, mass=0.5, epsilon=0.02, valid=valid, **EXACT)
    assert plan.sum().item() == pytest.approx(0.5, rel=1e-8)
    assert (plan.sum(1) <= 1 / 6 + 1e-9).all()
    assert (plan.sum(0) <= 1 / 4 + 1e-9).all()
    assert (plan[~valid] == 0).all()
    sharp, blunt = (partial_transport(cost, mass=0.5, epsilon=e, **EXACT) for e in (0.02, 2.0))
    assert (sharp * cost).sum() < (blunt * cost).sum()


def test_iterations_stop_at_the_tolerance() -> None:
    cost, valid = case()
    rough = partial_transport(cost, mass=0.3, epsilon=0.05, valid=valid, tolerance=1e-3)
    exact = partial_transport(cost, mass=0.3, epsilon=0.05, valid=valid, **EXACT)
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=1e-4)
    assert not torch.equal(rough, exact)


@pytest.mark.parametrize("epsilon", [0.01, 0.07])
def test_the_default_tolerance_is_near_the_exact_plan_on_batches_of_any_size(epsilon: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (2, 17, 64):
        cost = (0.9 - 0.15 * torch.randn(n, n, generator=generator)).relu()
        valid = torch.rand(n, n, generator=generator) > 0.2
        valid[0] = False  # an image that has no match
        options = {"mass": 0.1, "epsilon": epsilon, "valid": valid}
        found, exact = (partial_transport(cost, **options, **more) for more in ({}, EXACT | {"max_iterations": 5000}))
        assert float((found - exact).abs().max()) * n < 0.05
        assert float(exact.sum()) == pytest.approx(0.1, rel=1e-6)


def test_the_rematching_loss_matches_the_oracle() -> None:
    cost, valid = case()
    plan = partial_transport(cost, mass=0.3, epsilon=0.2, valid=valid)
    logits = 3 * torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = oracle.rematching(logits.tolist(), plan.tolist(), valid.tolist())
    assert rematching_loss(logits, plan, valid=valid).item() == pytest.approx(expected, rel=1e-10)


def test_the_rematching_loss_by_hand() -> None:
    # P is uniform; rows of t are (3/4, 1/4) and its mirror: KL + KL = 1/4 ln(3/2) - 1/4 ln(1/2) = ln(3) / 4 a row,
    # the same in each column, of which the loss takes one half each.
    plan = torch.tensor([[0.3, 0.1], [0.1, 0.3]], dtype=torch.float64)
    found = rematching_loss(torch.zeros(2, 2, dtype=torch.float64), plan)
    assert found.item() == pytest.approx(math.log(3) / 4, rel=1e-12)
    assert rematching_loss(plan.log(), plan).item() == pytest.approx(0.0, abs=1e-12)


def test_gradients() -> None:
    cost, valid = case(4, 4)
    plan = partial_transport(cost, mass=0.3, epsilon=0.2, valid=valid)
    logits = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: rematching_loss(f, plan, valid=valid), (logits,))
    assert torch.autograd.gradcheck(lambda f: symmetric_cross_entropy(f), (logits,))
    assert not partial_transport(logits, mass=0.3, epsilon=0.2).requires_grad


def test_symmetric_cross_entropy_matches_the_oracle_and_a_value_by_hand() -> None:
    logits = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert symmetric_cross_entropy(logits).tolist() == pytest.approx(oracle.symmetric(logits.tolist()), rel=1e-10)
    # Two equal scores: (ln 2 + 7 ln 10 / 2) / 2.
    found = symmetric_cross_entropy(torch.zeros(2, 2, dtype=torch.float64))
    assert found.tolist() == pytest.approx([(math.log(2) + 3.5 * math.log(10)) / 2] * 2, rel=1e-12)


def test_sizes_and_ranges_are_checked() -> None:
    with pytest.raises(ValueError, match="mass must lie between 0 and 1"):
        partial_transport(torch.ones(2, 2), mass=1.0, epsilon=0.1)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        partial_transport(torch.ones(2, 2), mass=0.5, epsilon=0.0)


PLANS = {
    "sign of the cost": lambda c, v: partial_transport(-c, mass=0.3, epsilon=0.2, valid=v, **EXACT),
    "everything is matched": lambda c, v: partial_transport(c, mass=0.999, epsilon=0.2, valid=v, **EXACT) * 0.3,
    "given pairs allowed": lambda c, _: partial_transport(c, mass=0.3, epsilon=0.2, **EXACT),
    "epsilon multiplies": lambda c, v: partial_transport(c, mass=0.3, epsilon=5.0, valid=v, **EXACT),
    "transposed": lambda c, v: partial_transport(c.T, mass=0.3, epsilon=0.2, valid=v, **EXACT),
}
LOSSES = {
    "one direction": lambda f, p: rematching_loss(f, p) / 2,
    "transposed plan": lambda f, p: rematching_loss(f, p.T),
    "not symmetric": lambda f, p: torch.nn.functional.kl_div(
        f.log_softmax(1), p / p.sum(1, keepdim=True), reduction="batchmean"
    ),
    "plan not normalised": lambda f, p: ((f.softmax(1) - p) * (f.log_softmax(1) - p.log())).sum(1).mean(),
}


@pytest.mark.parametrize("twin", PLANS.values(), ids=PLANS.keys())
def test_the_oracle_rejects_wrong_plans(twin) -> None:
    cost, valid = case()
    expected = oracle.partial_transport(cost.tolist(), 0.3, 0.2, valid.tolist(), 500)
    assert twin(cost, valid).flatten().tolist() != pytest.approx([x for row in expected for x in row], rel=1e-6)


@pytest.mark.parametrize("twin", LOSSES.values(), ids=LOSSES.keys())
def test_the_oracle_rejects_wrong_losses(twin) -> None:
    plan = torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    logits = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = oracle.rematching(logits.tolist(), plan.tolist(), [[True] * 5] * 5)
    assert twin(logits, plan).item() != pytest.approx(expected, rel=1e-6)
