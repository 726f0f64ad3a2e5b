"""The hinge losses and the soft margin against loops, hand values and wrong twins."""

from __future__ import annotations

import pytest
import torch

from logit_cases import assert_exact, assert_rejected, different, random_logits, repeated_ids
from oracles import triplet as oracle
from sremkit.objectives.triplet import soft_margin, triplet

REDUCTIONS = ["hardest", "mean"]


def scores(b: int = 9, seed: int = 3) -> torch.Tensor:
    return random_logits(b, seed=seed).sigmoid()


def margins(b: int = 9) -> torch.Tensor:
    return torch.rand(b, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_triplet_matches_the_oracle(reduction: str, repeated: bool, soft: bool) -> None:
    s, valid = scores(), different(repeated_ids(9)) if repeated else None
    margin = margins() if soft else 0.2
    expected = oracle.triplet(
        s.tolist(),
        margin.tolist() if soft else [0.2] * 9,
        reduction,
        None if valid is None else valid.tolist(),
    )
    assert_exact(triplet(s, margin=margin, reduction=reduction, valid=valid), expected)
    assert sum(x > 0 for x in expected) >= 4  # else it would compare zeros


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_asymmetric_mask_is_transposed_for_the_texts(reduction: str) -> None:
    valid = (random_logits(9, seed=8) > -0.5) | torch.eye(9, dtype=torch.bool)
    assert not torch.equal(valid, valid.T)
    expected = oracle.triplet(scores().tolist(), [0.2] * 9, reduction, valid.tolist())
    assert_exact(triplet(scores(), margin=0.2, reduction=reduction, valid=valid), expected)


def test_both_reductions_by_hand() -> None:
    # Margin 0.2. Image 0 has 0.9 against 0.8: hinge 0.1. Image 1 has 0.3 against 0.4: hinge 0.3.
    # Text 0 has 0.9 against 0.4: no hinge. Text 1 has 0.3 against 0.8: hinge 0.7.
    s = torch.tensor([[0.9, 0.8], [0.4, 0.3]], dtype=torch.float64)
    assert_exact(triplet(s, margin=0.2, reduction="hardest"), [0.1 + 0, 0.3 + 0.7])
    # The mean divides by the batch, the pair itself included: half of it here.
    assert_exact(triplet(s, margin=0.2, reduction="mean"), [0.05, 0.5])
    # Margins 0.2 and 0: the second pair's hinges both lose 0.2, the first pair's nothing.
    soft = torch.tensor([0.2, 0.0], dtype=torch.float64)
    assert_exact(triplet(s, margin=soft, reduction="hardest"), [0.1, 0.1 + 0.5])


def _published(s: torch.Tensor, row_margin: torch.Tensor, column_margin: torch.Tensor) -> torch.Tensor:
    """Hardest hinges with margins broadcast by hand, the way the public codes do."""
    away = ~torch.eye(len(s), dtype=torch.bool)
    own = s.diagonal()
    i2t = ((row_margin + s - own[:, None]).relu() * away).max(1).values
    t2i = ((column_margin + s - own[None, :]).relu() * away).max(0).values
    return i2t + t2i


TWINS = {
    "margin of the row's image in both directions": lambda s, m: _published(s, m[:, None], m[:, None]),
    "margin of the column's text in both directions": lambda s, m: _published(s, m[None, :], m[None, :]),
    "one direction twice": lambda s, m: 2 * _published(s, m[:, None], m[None, :] - 9),
    "transposed texts forgotten": lambda s, m: triplet(s.T, margin=m.flip(0), reduction="hardest"),
    "mean for hardest": lambda s, m: triplet(s, margin=m, reduction="mean"),
    "margin subtracted": lambda s, m: triplet(s, margin=-m, reduction="hardest"),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    expected = oracle.triplet(scores().tolist(), margins().tolist(), "hardest")
    assert_exact(_published(scores(), margins()[:, None], margins()[None, :]), expected)  # the right one
    assert_rejected(twin, scores(), margins(), expected=expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_are_correct(reduction: str) -> None:
    s, m = scores(5).requires_grad_(), margins(5)
    assert torch.autograd.gradcheck(lambda x: triplet(x, margin=m, reduction=reduction), s)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_mask_by_groups_is_the_loss_of_each_groups_own_matrix(reduction: str) -> None:
    s, group = scores(), torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 0], dtype=torch.bool)
    masked = triplet(s, margin=margins(), reduction=reduction, valid=group[:, None] == group[None, :])
    for side in (group, ~group):
        alone = triplet(s[side][:, side], margin=margins()[side], reduction=reduction)
        torch.testing.assert_close(masked[side], alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_masked_candidates_change_nothing_and_a_row_without_candidates_is_zero(reduction: str) -> None:
    s, valid = scores(), different(repeated_ids(9))
    changed = s.masked_fill(~valid, 50.0)
    same = triplet(s, margin=0.2, reduction=reduction, valid=valid)
    assert torch.equal(same, triplet(changed, margin=0.2, reduction=reduction, valid=valid))
    assert not torch.equal(
        triplet(s, margin=0.2, reduction=reduction), triplet(changed, margin=0.2, reduction=reduction)
    )
    alone = torch.eye(9, dtype=torch.bool)
    assert (triplet(s, margin=0.2, reduction=reduction, valid=alone) == 0).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_order_of_the_pairs_and_the_role_of_the_modalities_do_not_matter(reduction: str) -> None:
    s, m = scores(), margins()
    loss = triplet(s, margin=m, reduction=reduction)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        triplet(s[order][:, order], margin=m[order], reduction=reduction), loss[order], rtol=1e-12, atol=0
    )
    torch.testing.assert_close(triplet(s.T, margin=m, reduction=reduction), loss, rtol=1e-12, atol=0)


def test_half_precision_is_computed_in_float32() -> None:
    assert triplet(scores().bfloat16(), margin=0.2, reduction="mean").dtype == torch.float32


def test_invalid_options_raise() -> None:
    with pytest.raises(ValueError, match="reduction must be one of hardest, mean; got 'sum'"):
        triplet(scores(), margin=0.2, reduction="sum")
    with pytest.raises(ValueError, match=r"one for each of the 9 pairs; got shape \(9, 1\)"):
        triplet(scores(), margin=margins()[:, None], reduction="mean")
    with pytest.raises(ValueError, match="exponential, linear, sine; got 'steps'"):
        soft_margin(margins(), margin=0.2, shape="steps")


@pytest.mark.parametrize("shape", ["exponential", "linear", "sine"])
def test_the_soft_margin_matches_the_oracle_and_runs_from_zero_to_the_margin(shape: str) -> None:
    labels = torch.linspace(0, 1, 11, dtype=torch.float64)
    found = soft_margin(labels, margin=0.2, shape=shape, base=7.0)
    expected = [oracle.soft_margin(y, 0.2, shape, 7.0) for y in labels.tolist()]
    # An absolute tolerance for the sine at 0, which is a difference of equal numbers.
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-16)
    assert found[0].item() == pytest.approx(0, abs=1e-16)
    assert found[-1].item() == pytest.approx(0.2, rel=1e-12)
    assert (found.diff() > 0).all()


def test_the_exponential_margin_by_hand() -> None:
    # Base 9, label 1/2: (3 - 1) / (9 - 1) = 1/4 of the margin.
    assert soft_margin(torch.tensor([0.5]), margin=0.2, base=9.0).item() == pytest.approx(0.05)
