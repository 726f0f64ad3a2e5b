"""eq:entropy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logit_cases import WORKED, assert_exact, assert_rejected, different, random_logits, repeated_ids
from oracles import ranking as oracle
from sremkit.objectives import normalized_entropy

TWINS = {
    "sign": lambda F: (F.softmax(1) * F.log_softmax(1)).sum(1) / math.log(len(F)),
    "axis": lambda F: -(F.softmax(0) * F.log_softmax(0)).sum(0) / math.log(len(F)),
    "not normalised": lambda F: -(F.softmax(1) * F.log_softmax(1)).sum(1),
    "divided by B": lambda F: -(F.softmax(1) * F.log_softmax(1)).sum(1) / len(F),
    "divided by log(B - 1)": lambda F: -(F.softmax(1) * F.log_softmax(1)).sum(1) / math.log(len(F) - 1),
    "mean for sum": lambda F: -(F.softmax(1) * F.log_softmax(1)).mean(1) / math.log(len(F)),
}


@pytest.mark.parametrize("size", [2, 5, 12])
def test_entropy_equals_its_oracle(size: int) -> None:
    F = random_logits(size)
    assert_exact(normalized_entropy(F), oracle.normalized_entropy(F.tolist()))


def test_entropy_of_the_worked_rows() -> None:
    # P = (5/8, 1/4, 1/8), (1/4, 1/8, 5/8), (1/6, 1/3, 1/2); divided by log 3.
    first = 5 / 8 * math.log(8 / 5) + 1 / 4 * math.log(4) + 1 / 8 * math.log(8)
    last = 1 / 6 * math.log(6) + 1 / 3 * math.log(3) + 1 / 2 * math.log(2)
    assert_exact(normalized_entropy(WORKED), [x / math.log(3) for x in (first, first, last)])


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_a_wrong_entropy(twin) -> None:
    F = random_logits(6)
    assert_rejected(twin, F, expected=oracle.normalized_entropy(F.tolist()))


def test_the_maximum_adapts_to_the_candidates_that_are_left() -> None:
    F, valid = random_logits(12), different(repeated_ids(12))
    assert_exact(normalized_entropy(F, valid=valid), oracle.normalized_entropy(F.tolist(), valid.tolist()))
    even = normalized_entropy(torch.zeros(12, 12, dtype=torch.float64), valid=valid)
    torch.testing.assert_close(even, torch.ones_like(even), rtol=1e-10, atol=0)


@given(st.floats(-100, 100))
def test_entropy_does_not_see_a_shift_of_all_logits(shift: float) -> None:
    F = random_logits(5)
    torch.testing.assert_close(normalized_entropy(F + shift), normalized_entropy(F), rtol=1e-9, atol=0)


def test_entropy_follows_the_order_of_rows_and_ignores_that_of_columns() -> None:
    F, order = random_logits(7), torch.randperm(7, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(normalized_entropy(F[order][:, order]), normalized_entropy(F)[order])


@given(st.floats(0, 1e4), st.integers(2, 9))
def test_entropy_lies_between_0_and_1(scale: float, size: int) -> None:
    entropy = normalized_entropy((random_logits(size) * scale).float())
    assert ((entropy >= 0) & (entropy <= 1)).all()


def test_entropy_is_1_for_equal_logits_and_0_for_one_that_takes_all() -> None:
    assert_exact(normalized_entropy(torch.zeros(4, 4, dtype=torch.float64)), [1.0] * 4)
    assert (normalized_entropy(1e4 * torch.eye(4)) == 0).all()


def test_a_single_candidate_has_no_entropy() -> None:
    assert normalized_entropy(torch.tensor([[3.0]])).tolist() == [0.0]


def test_entropy_has_the_right_gradient() -> None:
    assert torch.autograd.gradcheck(normalized_entropy, (random_logits(4).requires_grad_(),))
