"""eq:entropy, eq:weight and eq:ranking."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logit_cases import (
    FIRST_AND_LAST,
    NONE,
    WORKED,
    assert_exact,
    assert_rejected,
    different,
    random_flags,
    random_logits,
    repeated_ids,
)
from oracles import weighting as oracle
from sremkit.objectives import normalized_entropy, sensitivity, weighted_ranking
from sremkit.objectives.logits import hardest_negative

MARGIN = 0.2
ENTROPY_TWINS = {
    "sign": lambda F: (F.softmax(1) * F.log_softmax(1)).sum(1) / math.log(len(F)),
    "axis": lambda F: -(F.softmax(0) * F.log_softmax(0)).sum(0) / math.log(len(F)),
    "not normalized": lambda F: -(F.softmax(1) * F.log_softmax(1)).sum(1),
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


@pytest.mark.parametrize("twin", ENTROPY_TWINS.values(), ids=ENTROPY_TWINS.keys())
def test_the_oracle_rejects_a_wrong_entropy(twin) -> None:
    F = random_logits(6)
    assert_rejected(twin, F, expected=oracle.normalized_entropy(F.tolist()))


def test_the_maximum_adapts_to_the_candidates_that_are_left() -> None:
    F, valid = random_logits(12), different(repeated_ids(12))
    assert_exact(normalized_entropy(F, valid=valid), oracle.normalized_entropy(F.tolist(), valid.tolist()))
    even = normalized_entropy(torch.zeros(12, 12, dtype=torch.float64), valid=valid)
    torch.testing.assert_close(even, torch.ones_like(even), rtol=1e-10, atol=0)


@given(st.floats(-100, 100))
def test_entropy_is_invariant_to_a_shift_of_all_logits(shift: float) -> None:
    F = random_logits(5)
    torch.testing.assert_close(normalized_entropy(F + shift), normalized_entropy(F), rtol=1e-9, atol=0)


def test_entropy_follows_the_order_of_rows_and_ignores_that_of_columns() -> None:
    F, order = random_logits(7), torch.randperm(7, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(normalized_entropy(F[order][:, order]), normalized_entropy(F)[order])


@given(st.floats(0, 1e4), st.integers(2, 9))
def test_entropy_lies_between_0_and_1(scale: float, size: int) -> None:
    entropy = normalized_entropy((random_logits(size) * scale).float())
    assert ((entropy >= 0) & (entropy <= 1)).all()


def test_entropy_is_1_for_equal_logits_and_0_for_a_dominant_one() -> None:
    assert_exact(normalized_entropy(torch.zeros(4, 4, dtype=torch.float64)), [1.0] * 4)
    assert (normalized_entropy(1e4 * torch.eye(4)) == 0).all()


def test_a_single_candidate_has_no_entropy() -> None:
    assert normalized_entropy(torch.tensor([[3.0]])).tolist() == [0.0]


def test_entropy_has_the_right_gradient() -> None:
    assert torch.autograd.gradcheck(normalized_entropy, (random_logits(4).requires_grad_(),))


def gap(F: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    """margin - S_ii + S_i,phi(i), or with the sign turned."""
    hard = F.gather(1, hardest_negative(F)[0][:, None])[:, 0]
    return MARGIN + sign * (hard.sigmoid() - F.diagonal().sigmoid())


WEIGHT_TWINS = {
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


@pytest.mark.parametrize("twin", WEIGHT_TWINS.values(), ids=WEIGHT_TWINS.keys())
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
    assert_exact(sensitivity(F, margin=MARGIN, valid=valid), oracle.sensitivity(F.tolist(), MARGIN, valid.tolist()))


def test_the_weight_follows_the_order_of_the_pairs() -> None:
    F, order = random_logits(8), torch.randperm(8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sensitivity(F[order][:, order], margin=MARGIN), sensitivity(F, margin=MARGIN)[order])


def test_the_weight_is_0_for_equal_logits_and_1_for_a_pair_alone() -> None:
    assert_exact(sensitivity(torch.zeros(4, 4, dtype=torch.float64), margin=MARGIN), [0.0] * 4)
    assert sensitivity(torch.tensor([[-3.0]]), margin=MARGIN).tolist() == [1.0]


def test_the_weight_carries_no_gradient() -> None:
    assert not sensitivity(random_logits(4).requires_grad_(), margin=MARGIN).requires_grad


def case(size: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, the swapped weight, and clean pairs of which some are inside the hinge and some are not."""
    F = random_logits(size, scale=1.0, lift=3.0) - 2
    return F, sensitivity(F.T, margin=MARGIN), random_flags(size)


def score_of_hardest(F: torch.Tensor) -> torch.Tensor:
    return F.gather(1, hardest_negative(F)[0][:, None])[:, 0].sigmoid()


def hinges(F: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (MARGIN - w * F.diagonal().sigmoid() + score_of_hardest(F)).relu()


RANKING_TWINS = {
    "sign": lambda F, w, c: (MARGIN + w * F.diagonal().sigmoid() - score_of_hardest(F)).relu()[c].mean(),
    "axis": lambda F, w, c: hinges(F.T, w)[c].mean(),
    "unswapped weight": lambda F, w, c: hinges(F, sensitivity(F, margin=MARGIN))[c].mean(),
    "weight on the negative": lambda F, w, c: (
        (MARGIN - F.diagonal().sigmoid() + w * score_of_hardest(F)).relu()[c].mean()
    ),
    "weight on the whole hinge": lambda F, w, c: (w * hinges(F, torch.ones_like(w)))[c].mean(),
    "pair among its negatives": lambda F, w, c: (
        (MARGIN - w * F.diagonal().sigmoid() + F.amax(1).sigmoid()).relu()[c].mean()
    ),
    "all pairs": lambda F, w, c: hinges(F, w).mean(),
    "sum for mean": lambda F, w, c: hinges(F, w)[c].sum(),
    "mean over the batch": lambda F, w, c: (hinges(F, w) * c).mean(),
    "no hinge": lambda F, w, c: (MARGIN - w * F.diagonal().sigmoid() + score_of_hardest(F))[c].mean(),
    "logits for scores": lambda F, w, c: (
        (MARGIN - w * F.diagonal() + F.gather(1, hardest_negative(F)[0][:, None])[:, 0]).relu()[c].mean()
    ),
}


@pytest.mark.parametrize("size", [2, 5, 12])
def test_the_ranking_equals_its_oracle(size: int) -> None:
    F, weight, clean = case(size)
    assert clean.any()
    expected = oracle.weighted_ranking(F.tolist(), weight.tolist(), clean.tolist(), MARGIN)
    assert_exact(weighted_ranking(F, weight, clean, margin=MARGIN), expected)


@pytest.mark.parametrize("twin", RANKING_TWINS.values(), ids=RANKING_TWINS.keys())
def test_the_oracle_rejects_a_wrong_ranking(twin) -> None:
    F, weight, clean = case()
    inside = hinges(F, weight)[clean] > 0
    assert inside.any()
    assert not inside.all()
    expected = oracle.weighted_ranking(F.tolist(), weight.tolist(), clean.tolist(), MARGIN)
    assert_rejected(twin, F, weight, clean, expected=expected)


def test_the_ranking_of_the_worked_rows() -> None:
    # Row 0: 0.2 - 0.6 * 5/6 + 2/3 = 11/30. Row 2: 0.2 - 0.8 * 3/4 + 2/3 = 4/15. Row 1 is not clean. Mean 19/60.
    weight = torch.tensor([0.6, 0.1, 0.8], dtype=torch.float64)
    assert_exact(weighted_ranking(WORKED, weight, FIRST_AND_LAST, margin=0.2), 19 / 60)


def test_without_a_clean_pair_the_ranking_is_zero_and_so_is_its_gradient() -> None:
    F = WORKED.clone().requires_grad_()
    loss = weighted_ranking(F, torch.ones(3, dtype=torch.float64), NONE, margin=0.2)
    loss.backward()
    assert loss == 0
    assert (F.grad == 0).all()


def test_a_pair_without_any_negative_contributes_nothing() -> None:
    alone = weighted_ranking(torch.tensor([[-9.0]]), torch.ones(1), torch.tensor([True]), margin=0.2)
    assert alone == 0


def test_true_matches_are_no_hard_negatives_of_the_ranking() -> None:
    F, weight, clean = case()
    valid = different(repeated_ids(12))
    F[4, 5] = 9.0
    clean[4] = True
    expected = oracle.weighted_ranking(F.tolist(), weight.tolist(), clean.tolist(), MARGIN, valid.tolist())
    assert_exact(weighted_ranking(F, weight, clean, margin=MARGIN, valid=valid), expected)


def test_the_ranking_is_invariant_to_the_order_of_the_pairs() -> None:
    F, weight, clean = case()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    moved = weighted_ranking(F[order][:, order], weight[order], clean[order], margin=MARGIN)
    torch.testing.assert_close(moved, weighted_ranking(F, weight, clean, margin=MARGIN), rtol=1e-12, atol=0)


def test_a_large_lead_over_the_negatives_leaves_nothing_to_rank() -> None:
    F = torch.full((4, 4), -20.0) + 40 * torch.eye(4)
    assert weighted_ranking(F, torch.ones(4), torch.ones(4, dtype=torch.bool), margin=0.2) == 0


def derivative_by_scores(loss: torch.Tensor, F: torch.Tensor) -> torch.Tensor:
    (by_logits,) = torch.autograd.grad(loss, F)
    scores = F.detach().sigmoid()
    return by_logits / (scores * (1 - scores))


def paper_derivative(F: torch.Tensor, weight: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    """-w_i / n on the pair, 1 / n on its hardest negative, for the n clean pairs; 0 outside the hinge."""
    expected = torch.zeros_like(F)
    for i in range(len(F)):
        if clean[i] and hinges(F, weight)[i] > 0:
            expected[i, i] = -weight[i] / clean.sum()
            expected[i, oracle.hardest_negative(F.tolist(), i)] = 1 / clean.sum().double()
    return expected


def test_the_ranking_has_the_derivative_that_the_paper_states() -> None:
    F, weight, clean = case()
    leaf = F.clone().requires_grad_()
    found = derivative_by_scores(weighted_ranking(leaf, weight, clean, margin=MARGIN), leaf)
    torch.testing.assert_close(found, paper_derivative(F, weight, clean), rtol=1e-10, atol=1e-14)


def test_a_weight_that_carries_a_gradient_is_rejected_and_the_ranking_drops_it() -> None:
    F, weight, clean = case()
    leaf = F.clone().requires_grad_()
    live = 1 - normalized_entropy(leaf.T) * (weight < 1)  # the same values as `weight`, with a gradient
    torch.testing.assert_close(live.detach(), weight, rtol=1e-12, atol=0)
    loose = (MARGIN - live * leaf.diagonal().sigmoid() + score_of_hardest(leaf)).relu()[clean].mean()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            derivative_by_scores(loose, leaf), paper_derivative(F, weight, clean), rtol=1e-10, atol=1e-14
        )
    kept = derivative_by_scores(weighted_ranking(leaf, live, clean, margin=MARGIN), leaf)
    torch.testing.assert_close(kept, paper_derivative(F, weight, clean), rtol=1e-10, atol=1e-14)


def test_the_ranking_passes_a_numerical_gradient_check() -> None:
    F, weight, clean = case()
    assert torch.autograd.gradcheck(lambda x: weighted_ranking(x, weight, clean, margin=MARGIN), (F.requires_grad_(),))


def test_a_tie_for_the_hardest_negative_takes_the_first() -> None:
    F = torch.tensor([[0.0, 1.0, 1.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]], dtype=torch.float64).requires_grad_()
    first = torch.tensor([True, False, False])
    weighted_ranking(F, torch.ones(3, dtype=torch.float64), first, margin=0.2).backward()
    assert F.grad[0, 1] > 0
    assert F.grad[0, 2] == 0
    assert math.isclose(F.grad[0, 1], (1 / (1 + math.exp(-1))) * (1 - 1 / (1 + math.exp(-1))))
