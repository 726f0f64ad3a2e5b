"""eq:weight."""

from __future__ import annotations

import math

import pytest
import torch

from logit_cases import WORKED, assert_exact, assert_rejected, different, random_logits, repeated_ids
from oracles import ranking as oracle
from sremkit.objectives import normalized_entropy, sensitivity
from sremkit.objectives.candidates import hardest_negative

MARGIN = 0.2


def gap(F: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    """margin - S_ii + S_i,phi(i), or with the sign turned."""
    hard = F.gather(1, hardest_negative(F)[0][:, None])[:, 0]
    return MARGIN + sign * (hard.sigmoid() - F.diagonal().sigmoid())


TWINS = {
    "sign of the gap": lambda F: 1 - normalized_entropy(F) * (gap(F, -1.0) > 0),
    "entropy for one minus entropy": lambda F: normalized_entropy(F) * (gap(F) > 0),
    "indicator missing": lambda F: 1 - normalized_entropy(F),
    "axis": lambda F: sensitivity(F.T, margin=MARGIN),
    "pair among its negatives": lambda F: (
        1 - normalized_entropy(F) * (MARGIN - F.diagonal().sigmoid() + F.amax(1).sigmoid() > 0)
    ),
    "logits for scores": lambda F: (
        1 - normalized_entropy(F) * (MARGIN - F.diagonal() + (F - 99 * torch.eye(len(F))).amax(1) > 0)
    ),
}


@pytest.mark.parametrize("size", [2, 5, 12])
def test_the_weight_equals_its_oracle(size: int) -> None:
    F = random_logits(size)
    assert_exact(sensitivity(F, margin=MARGIN), oracle.sensitivity(F.tolist(), MARGIN))


def test_the_weight_of_the_worked_rows() -> None:
    # margin 0.1: row 0 leads by 5/6 - 2/3 = 1/6, so it is satisfied; row 1 trails; row 2 leads by 1/12 only.
    row_1 = (5 / 8 * math.log(8 / 5) + 1 / 4 * math.log(4) + 1 / 8 * math.log(8)) / math.log(3)
    row_2 = (1 / 6 * math.log(6) + 1 / 3 * math.log(3) + 1 / 2 * math.log(2)) / math.log(3)
    assert_exact(sensitivity(WORKED, margin=0.1), [1.0, 1 - row_1, 1 - row_2])


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_a_wrong_weight(twin) -> None:
    F = random_logits(12, scale=1.0, lift=3.0) - 2
    expected = oracle.sensitivity(F.tolist(), MARGIN)
    assert 1.0 in expected
    assert min(expected) < 1
    assert_rejected(twin, F, expected=expected)


def test_true_matches_are_no_hard_negatives_of_the_weight() -> None:
    F, valid = random_logits(12), different(repeated_ids(12))
    F[0], F[0, 0], F[0, 2] = -3.0, 3.0, 9.0  # image 0 also comes with text 2; all others trail by far
    assert sensitivity(F, margin=MARGIN, valid=valid)[0] == 1
    assert_exact(
        sensitivity(F, margin=MARGIN, valid=valid), oracle.sensitivity(F.tolist(), MARGIN, valid.tolist())
    )


def test_the_weight_follows_the_order_of_the_pairs() -> None:
    F, order = random_logits(8), torch.randperm(8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        sensitivity(F[order][:, order], margin=MARGIN), sensitivity(F, margin=MARGIN)[order]
    )


def test_the_weight_is_0_for_equal_logits_and_1_for_a_pair_alone() -> None:
    assert_exact(sensitivity(torch.zeros(4, 4, dtype=torch.float64), margin=MARGIN), [0.0] * 4)
    assert sensitivity(torch.tensor([[-3.0]]), margin=MARGIN).tolist() == [1.0]


def test_the_weight_carries_no_gradient() -> None:
    assert not sensitivity(random_logits(4).requires_grad_(), margin=MARGIN).requires_grad
