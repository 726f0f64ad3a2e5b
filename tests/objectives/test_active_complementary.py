"""CRCL's active complementary loss against loops, by hand, and against wrong twins."""

from __future__ import annotations

import math

import pytest
import torch

from oracles import crcl as oracle
from sremkit.objectives.contrastive import infonce
from sremkit.objectives.rcl import active_complementary, rcl


def case(b: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(b, b, dtype=torch.float64, generator=generator)
    label = torch.rand(b, dtype=torch.float64, generator=generator)
    label[0], label[1] = 0.0, 1.0
    return logits, label


@pytest.mark.parametrize("weight", [5.0, 0.3])
def test_it_matches_the_oracle(weight: float) -> None:
    logits, label = case()
    expected = oracle.active_complementary(logits.tolist(), label.tolist(), weight)
    assert active_complementary(logits, label, complementary_weight=weight).tolist() == pytest.approx(
        expected, rel=1e-10
    )


def test_by_hand() -> None:
    # Two equal scores: P = 1/2. At label 1: ln 2 + 5 tan(1/2); at label 0: 5 tan(1/2) / (2 tan(1/2)) = 2.5.
    found = active_complementary(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([math.log(2) + 5 * math.tan(0.5), 2.5], rel=1e-12)


def test_at_label_1_it_is_infonce_with_the_tan_form_of_rcl() -> None:
    logits, _ = case()
    found = active_complementary(logits, torch.ones(6, dtype=torch.float64), complementary_weight=2.0).mean()
    expected = infonce(logits) + 2 * rcl(logits, temperature=1.0, form="tan")
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_at_label_0_the_loss_is_bounded_whatever_the_logits() -> None:
    logits, _ = case()
    for factor in (0.0, 1.0, 100.0):
        found = active_complementary(factor * logits, torch.zeros(6, dtype=torch.float64), complementary_weight=1.0)
        assert ((found >= 0) & (found <= 1)).all()


def test_masked_candidates_do_not_count() -> None:
    logits, label = case(5)
    valid = torch.ones(5, 5, dtype=torch.bool)
    valid[:4, 4] = valid[4, :4] = False
    found = active_complementary(logits, label, valid=valid)[:4]
    expected = oracle.active_complementary(logits[:4, :4].tolist(), label[:4].tolist(), 5.0)
    assert found.tolist() == pytest.approx(expected, rel=1e-10)


def test_gradients() -> None:
    logits, label = case(4)
    assert torch.autograd.gradcheck(lambda f: active_complementary(f, label), (logits.requires_grad_(),))
    # Saturated: finite, and nothing pulls a pair of label 0 together.
    far = torch.tensor([[-400.0, 400.0], [0.0, 0.0]], requires_grad=True)
    active_complementary(far, torch.tensor([0.0, 1.0])).sum().backward()
    assert torch.isfinite(far.grad).all()


def tangents(f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = f.softmax(1)
    return p.diagonal().log(), p.tan().sum(1) - p.diagonal().tan(), p.tan().sum(1)


TWINS = {
    "label for 1 - label": lambda f, y: -y * tangents(f)[0] + 5 * tangents(f)[1] / tangents(f)[2] ** y,
    "unweighted pull": lambda f, y: -tangents(f)[0] + 5 * tangents(f)[1] / tangents(f)[2] ** (1 - y),
    "no bound": lambda f, y: -y * tangents(f)[0] + 5 * tangents(f)[1],
    "diagonal among negatives": lambda f, y: -y * tangents(f)[0] + 5 * tangents(f)[2] ** y,
    "axis": lambda f, y: active_complementary(f.T, y),
    "weight dropped": lambda f, y: active_complementary(f, y, complementary_weight=1.0),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    logits, label = case()
    expected = oracle.active_complementary(logits.tolist(), label.tolist(), 5.0)
    assert twin(logits, label).tolist() != pytest.approx(expected, rel=1e-6)
