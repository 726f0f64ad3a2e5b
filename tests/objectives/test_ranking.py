"""eq:ranking."""

from __future__ import annotations

import math

import pytest
import torch

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
from oracles import ranking as oracle
from sremkit.objectives import normalized_entropy, sensitivity, weighted_ranking
from sremkit.objectives.candidates import hardest_negative

MARGIN = 0.2


def case(size: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, the swapped weight, and clean pairs of which some are inside the hinge and some are not."""
    F = random_logits(size, scale=1.0, lift=3.0) - 2
    return F, sensitivity(F.T, margin=MARGIN), random_flags(size)


def score_of_hardest(F: torch.Tensor) -> torch.Tensor:
    return F.gather(1, hardest_negative(F)[0][:, None])[:, 0].sigmoid()


def hinges(F: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (MARGIN - w * F.diagonal().sigmoid() + score_of_hardest(F)).relu()


TWINS = {
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


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
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


def test_the_ranking_does_not_see_the_order_of_the_pairs() -> None:
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
    assert torch.autograd.gradcheck(
        lambda x: weighted_ranking(x, weight, clean, margin=MARGIN), (F.requires_grad_(),)
    )


def test_a_tie_for_the_hardest_negative_takes_the_first() -> None:
    F = torch.tensor(
        [[0.0, 1.0, 1.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]], dtype=torch.float64
    ).requires_grad_()
    first = torch.tensor([True, False, False])
    weighted_ranking(F, torch.ones(3, dtype=torch.float64), first, margin=0.2).backward()
    assert F.grad[0, 1] > 0
    assert F.grad[0, 2] == 0
    assert math.isclose(F.grad[0, 1], (1 / (1 + math.exp(-1))) * (1 - 1 / (1 + math.exp(-1))))
