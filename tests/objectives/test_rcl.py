"""RCL and InfoNCE against loops, hand values and wrong twins."""

from __future__ import annotations

import math

import pytest
import torch

from oracles import contrastive as oracle
from sremkit.objectives import complementary
from sremkit.objectives.contrastive import infonce
from sremkit.objectives.rcl import rcl

FORMS = ["log", "tan", "abs", "exp", "gce"]


def scores(b: int = 7) -> torch.Tensor:
    return torch.randn(b, b, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).sigmoid()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
def test_rcl_matches_the_oracle(form: str, temperature: float) -> None:
    s = scores()
    expected = oracle.rcl(s.tolist(), temperature, form, 0.3)
    got = rcl(s, temperature=temperature, form=form, power=0.3)
    assert got.item() == pytest.approx(expected, rel=1e-10)


def test_rcl_by_hand() -> None:
    # Three equal scores: P = 1/3 everywhere, two negatives a row.
    # log: 2 * -ln(2/3) = 0.8109...; abs: 2/3; exp: 2 * exp(-2/3); tan: 2 * tan(1/3); gce, q = 1: 2 * 1/3
    equal = torch.zeros(3, 3, dtype=torch.float64)
    by_hand = {
        "log": -2 * math.log(2 / 3),
        "abs": 2 / 3,
        "exp": 2 * math.exp(-2 / 3),
        "tan": 2 * math.tan(1 / 3),
        "gce": 2 / 3,
    }
    for form, value in by_hand.items():
        assert rcl(equal, temperature=0.05, form=form, power=1.0).item() == pytest.approx(value, rel=1e-12)


TWINS = {
    "mean for sum": lambda s: rcl(s, temperature=0.05) / (len(s) - 1),
    "diagonal included": lambda s: -(1 - (s / 0.05).softmax(1)).log().sum(1).mean(),
    "temperature multiplies": lambda s: rcl(s, temperature=1 / 0.05),
    "axis": lambda s: rcl(s.T, temperature=0.05),
    "uses the pair": lambda s: -(s / 0.05).log_softmax(1).diagonal().mean(),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    s = scores()
    assert twin(s).item() != pytest.approx(oracle.rcl(s.tolist(), 0.05, "log", 0.5), rel=1e-10)


def test_srems_complementary_loss_at_sharpness_0_is_rcls_log_form() -> None:
    logits = scores() * 4
    no_pair = torch.zeros(len(logits), dtype=torch.bool)
    ours = complementary(logits, no_pair, sharpness=0.0, offset=0.5)
    torch.testing.assert_close(ours, rcl(logits, temperature=1.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_correct_and_finite_for_a_dominant_negative(form: str) -> None:
    s = scores(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rcl(x, temperature=0.5, form=form), s)
    extreme = torch.full((3, 3), -1e4).fill_diagonal_(-2e4)
    extreme[0, 1] = 1e4
    extreme.requires_grad_()
    loss = rcl(extreme, temperature=0.05, form=form)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(extreme.grad).all()


def test_repeated_images_are_no_negatives() -> None:
    s = scores(4)
    valid = torch.ones(4, 4, dtype=torch.bool)
    valid[0, 1] = valid[1, 0] = False
    changed = s.clone()
    changed[0, 1] = changed[1, 0] = 50.0
    assert rcl(s, temperature=0.5, valid=valid) == rcl(changed, temperature=0.5, valid=valid)
    assert rcl(s, temperature=0.5) != rcl(changed, temperature=0.5)


def test_infonce_matches_the_oracle_and_a_hand_value() -> None:
    logits = scores() * 5
    assert infonce(logits).item() == pytest.approx(oracle.infonce(logits.tolist()), rel=1e-10)
    assert infonce(logits.T).item() != pytest.approx(oracle.infonce(logits.tolist()), rel=1e-10)
    # Equal logits: every candidate has probability 1/4, so -ln(1/4).
    assert infonce(torch.zeros(4, 4)).item() == pytest.approx(math.log(4))


def test_invalid_options_raise() -> None:
    with pytest.raises(ValueError, match="form must be one of log, tan, abs, exp, gce; got 'mae'"):
        rcl(scores(), temperature=1.0, form="mae")
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        rcl(scores(), temperature=0.0)
