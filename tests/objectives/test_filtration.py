"""eq:filter."""

from __future__ import annotations

import math

import pytest
import torch

from logit_cases import WORKED, different, random_logits, repeated_ids
from oracles import energy as oracle
from sremkit.objectives import energy, select_clean


def argmax_is_pair(F: torch.Tensor) -> torch.Tensor:
    return F.argmax(1) == torch.arange(len(F))


TWINS = {
    "axis": lambda F, t: select_clean(F.T, t),
    "energy above the threshold": lambda F, t: argmax_is_pair(F) & (energy(F) >= t),
    "energy rule missing": lambda F, t: argmax_is_pair(F),
    "argmax rule missing": lambda F, t: energy(F) < t,
    "either rule": lambda F, t: argmax_is_pair(F) | (energy(F) < t),
    "threshold without its sign": lambda F, t: argmax_is_pair(F) & (energy(F) < -t),
}


@pytest.mark.parametrize("seed", range(5))
def test_the_filter_equals_its_oracle(seed: int) -> None:
    F = random_logits(40, seed=seed, lift=4.0)
    threshold = energy(F).median().item()
    expected = oracle.select_clean(F.tolist(), threshold)
    assert any(expected)
    assert not all(expected)
    assert select_clean(F, threshold).tolist() == expected


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_a_wrong_filter(twin) -> None:
    F = random_logits(40, seed=1, lift=4.0)
    threshold = energy(F).median().item()
    assert twin(F, threshold).tolist() != oracle.select_clean(F.tolist(), threshold)


def test_the_filter_of_the_worked_rows() -> None:
    # Row 1 prefers column 2 (5 over 1). Energies are -log 8 = -2.08, -2.08 and -log 6 = -1.79.
    assert select_clean(WORKED, 0.0).tolist() == [True, False, True]
    assert select_clean(WORKED, -2.0).tolist() == [True, False, False]
    assert select_clean(WORKED, -3.0).tolist() == [False, False, False]


def test_a_tie_with_a_negative_counts_against_the_pair() -> None:
    F = torch.tensor([[2.0, 2.0], [0.0, 1.0]])
    assert select_clean(F, 0.0).tolist() == [False, True]


def test_with_all_logits_equal_nothing_is_clean() -> None:
    assert not select_clean(torch.zeros(4, 4), 0.0).any()


def test_a_true_match_among_the_candidates_is_no_rival() -> None:
    F, ids = random_logits(12), repeated_ids(12)
    F[0, 0], F[0, 2] = 20.0, 50.0  # image 0 also comes with text 2
    expected = oracle.select_clean(F.tolist(), 0.0, different(ids).tolist())
    assert select_clean(F, 0.0, valid=different(ids)).tolist() == expected
    assert select_clean(F, 0.0, valid=different(ids))[0] != select_clean(F, 0.0)[0]


def test_no_threshold_selects_nothing_and_an_infinite_one_leaves_the_argmax_rule() -> None:
    F = random_logits(12)
    assert not select_clean(F, -math.inf).any()
    assert torch.equal(select_clean(F, math.inf), argmax_is_pair(F))


def test_the_filter_follows_the_order_of_the_pairs() -> None:
    F, order = random_logits(12), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(select_clean(F[order][:, order], -3.0), select_clean(F, -3.0)[order])


def test_the_filter_carries_no_gradient() -> None:
    assert not select_clean(random_logits(4).requires_grad_(), 0.0).requires_grad


def test_logits_that_are_not_square_are_refused() -> None:
    with pytest.raises(ValueError, match=r"square matrix.*got shape \(2, 3\)"):
        select_clean(torch.zeros(2, 3), 0.0)
