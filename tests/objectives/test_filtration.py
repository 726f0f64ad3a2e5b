"""eq:energy, eq:filter and eq:energy-bound."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logit_cases import (
    FIRST_AND_LAST,
    WORKED,
    assert_exact,
    assert_rejected,
    different,
    random_flags,
    random_logits,
    repeated_ids,
)
from oracles import filtration as oracle
from sremkit.objectives import energy, energy_bound, select_clean

ENERGY_TWINS = {
    "sign": lambda F: torch.logsumexp(F, 1),
    "axis": lambda F: -torch.logsumexp(F, 0),
    "mean for sum": lambda F: -(torch.logsumexp(F, 1) - math.log(len(F))),
    "pair left out": lambda F: -torch.logsumexp(F.masked_fill(torch.eye(len(F), dtype=torch.bool), -math.inf), 1),
    "highest only": lambda F: -F.amax(1),
}


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_energy_equals_its_oracle(size: int) -> None:
    F = random_logits(size)
    assert_exact(energy(F), oracle.energy(F.tolist()))


def test_energy_of_the_worked_rows() -> None:
    # Rows of exponentials sum to 8, 8 and 6.
    assert_exact(energy(WORKED), [-math.log(8), -math.log(8), -math.log(6)])


def test_excluded_candidates_add_nothing_to_the_energy() -> None:
    F, valid = random_logits(12), different(repeated_ids(12))
    assert_exact(energy(F, valid=valid), oracle.energy(F.tolist(), valid.tolist()))


@pytest.mark.parametrize("twin", ENERGY_TWINS.values(), ids=ENERGY_TWINS.keys())
def test_the_oracle_rejects_a_wrong_energy(twin) -> None:
    F = random_logits(6)
    assert_rejected(twin, F, expected=oracle.energy(F.tolist()))


@given(st.floats(-50, 50))
def test_energy_falls_by_what_is_added_to_all_logits(shift: float) -> None:
    F = random_logits(5)
    torch.testing.assert_close(energy(F + shift), energy(F) - shift, rtol=1e-10, atol=1e-12)


def test_energy_follows_the_order_of_rows_and_ignores_that_of_columns() -> None:
    F, order = random_logits(7), torch.randperm(7, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(energy(F[order]), energy(F)[order], rtol=1e-14, atol=0)
    torch.testing.assert_close(energy(F[:, order]), energy(F), rtol=1e-14, atol=0)


def test_energy_of_equal_logits_is_their_value_and_the_logarithm_of_the_batch() -> None:
    assert_exact(energy(torch.full((4, 4), 3.0, dtype=torch.float64)), [-(3 + math.log(4))] * 4)


def test_energy_of_one_dominant_logit_is_its_negative() -> None:
    F = torch.zeros(3, 3)
    F[1, 2] = 1e4
    assert energy(F)[1] == -1e4


def test_energy_has_the_gradient_of_a_softmax() -> None:
    F = random_logits(4).requires_grad_()
    assert torch.autograd.gradcheck(energy, (F,))
    energy(F).sum().backward()
    torch.testing.assert_close(F.grad, -F.detach().softmax(1), rtol=1e-10, atol=0)


def test_half_precision_logits_give_a_float32_energy() -> None:
    assert energy(random_logits(4).bfloat16()).dtype == torch.float32


BOUND_TWINS = {
    "mean over all for mean over the set": lambda E, c: (
        ((E + 4).relu() ** 2 * c).mean() + ((-1 - E).relu() ** 2 * ~c).mean()
    ),
    "sum for mean": lambda E, c: ((E + 4).relu() ** 2 * c).sum() + ((-1 - E).relu() ** 2 * ~c).sum(),
    "sets swapped": lambda E, c: (E[~c] + 4).relu().square().mean() + (-1 - E[c]).relu().square().mean(),
    "margins swapped": lambda E, c: (E[c] + 1).relu().square().mean() + (-4 - E[~c]).relu().square().mean(),
    "not squared": lambda E, c: (E[c] + 4).relu().mean() + (-1 - E[~c]).relu().mean(),
    "sign": lambda E, c: (-4 - E[c]).relu().square().mean() + (E[~c] + 1).relu().square().mean(),
    "no hinge": lambda E, c: (E[c] + 4).square().mean() + (-1 - E[~c]).square().mean(),
}


def spread_energies(size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies on both sides of both margins, in both sets."""
    return -4 + 2.5 * random_logits(size, lift=0.0)[0], random_flags(size)


def test_the_bound_equals_its_oracle() -> None:
    E, clean = spread_energies()
    assert (E[clean] > -4).any()
    assert (E[clean] < -4).any()
    assert (E[~clean] > -1).any()
    assert (E[~clean] < -1).any()
    expected = oracle.energy_bound(E.tolist(), clean.tolist(), -4.0, -1.0)
    assert_exact(energy_bound(E, clean, clean_margin=-4.0, noisy_margin=-1.0), expected)


@pytest.mark.parametrize("twin", BOUND_TWINS.values(), ids=BOUND_TWINS.keys())
def test_the_oracle_rejects_a_wrong_bound(twin) -> None:
    E, clean = spread_energies()
    expected = oracle.energy_bound(E.tolist(), clean.tolist(), -4.0, -1.0)
    assert_rejected(twin, E, clean, expected=expected)


def test_the_bound_of_the_worked_rows() -> None:
    # Clean rows 0 and 2 lie above -4: ((4 - log 8)^2 + (4 - log 6)^2) / 2. Row 1 lies below 0: (log 8)^2.
    expected = ((4 - math.log(8)) ** 2 + (4 - math.log(6)) ** 2) / 2 + math.log(8) ** 2
    assert_exact(energy_bound(energy(WORKED), FIRST_AND_LAST), expected)


def test_an_empty_set_contributes_nothing() -> None:
    E = torch.tensor([-1.0, -5.0], dtype=torch.float64)
    everything = torch.tensor([True, True])
    # Clean: (-1 + 4)^2 = 9 and 0, mean 4.5. Noisy: 1^2 and 5^2, mean 13.
    assert_exact(energy_bound(E, everything), 4.5)
    assert_exact(energy_bound(E, ~everything), 13.0)


def test_the_bound_is_zero_where_both_sets_keep_their_margin() -> None:
    E = torch.tensor([-4.5, 0.5], dtype=torch.float64)
    assert energy_bound(E, torch.tensor([True, False])) == 0


def test_the_bound_has_the_right_gradient() -> None:
    E, clean = spread_energies()
    assert torch.autograd.gradcheck(lambda e: energy_bound(e, clean, noisy_margin=-1.0), (E.requires_grad_(),))


def argmax_is_pair(F: torch.Tensor) -> torch.Tensor:
    return F.argmax(1) == torch.arange(len(F))


FILTER_TWINS = {
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


@pytest.mark.parametrize("twin", FILTER_TWINS.values(), ids=FILTER_TWINS.keys())
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


def test_a_repeated_image_is_no_competitor_in_the_filter() -> None:
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


def test_logits_that_are_not_square_raise() -> None:
    with pytest.raises(ValueError, match=r"square matrix.*got shape \(2, 3\)"):
        select_clean(torch.zeros(2, 3), 0.0)
