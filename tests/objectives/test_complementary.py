"""eq:selection, eq:rectify and eq:complementary, in both readings."""

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
from oracles import complementary as oracle
from sremkit.objectives import complementary
from sremkit.objectives.complementary import label_weights, log_complement, normalized_loss, printed_loss
from sremkit.objectives.logits import hardest_negative

SHARPNESS, OFFSET = 3.0, 0.4
FIRST = torch.tensor([True, False, False])


def loss(F: torch.Tensor, clean: torch.Tensor, reading: str, **options) -> torch.Tensor:
    settings = {"sharpness": SHARPNESS, "offset": OFFSET} | options
    return complementary(F, clean, reading=reading, **settings)


def expected(F: torch.Tensor, clean: torch.Tensor, reading: str, valid: torch.Tensor | None = None) -> float:
    of_reading = {"normalized": oracle.normalized, "printed": oracle.printed}[reading]
    mask = None if valid is None else valid.tolist()
    return of_reading(F.tolist(), clean.tolist(), SHARPNESS, OFFSET, mask)


def case(size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    # Half of the scores low, so that the printed S' stays below 1.
    return random_logits(size, scale=1.0) - 1, random_flags(size, seed=size)


@pytest.mark.parametrize("reading", ["normalized", "printed"])
@pytest.mark.parametrize("size", [3, 7, 12])
def test_each_reading_equals_its_oracle(size: int, reading: str) -> None:
    F, clean = case(size)
    assert clean.any()
    assert not clean.all()
    assert_exact(loss(F, clean, reading), expected(F, clean, reading))


@pytest.mark.parametrize("reading", ["normalized", "printed"])
def test_each_reading_excludes_repeated_images_and_adapts_its_counts(reading: str) -> None:
    F, clean = case(12)
    valid = different(repeated_ids(12))
    assert_exact(loss(F, clean, reading, valid=valid), expected(F, clean, reading, valid))


def test_label_weights_equal_their_oracle() -> None:
    F, clean = case(12)
    valid = different(repeated_ids(12))
    found = label_weights(F, clean, sharpness=SHARPNESS, offset=OFFSET, valid=valid)
    assert_exact(found, oracle.selection(F.tolist(), clean.tolist(), SHARPNESS, OFFSET, valid.tolist()))


def test_label_weights_of_the_worked_rows() -> None:
    # beta 6, b 1/2. Row 0: exponents 6 (2/3 - 1/2) = 1 and 6 (1/2 - 1/2) = 0, so Pbar = (e, 1) / (2 + e).
    # Row 1 has 2/3 and 5/6: exponents 1 and 2, Pbar = (e, e^2) / (1 + e + e^2). Row 2 as row 0, reversed.
    e = math.e
    first = math.exp(e / (2 + e)), math.exp(1 / (2 + e))
    second = math.exp(e / (1 + e + e * e)), math.exp(e * e / (1 + e + e * e))
    rows = [
        [0.0, first[0] / sum(first), first[1] / sum(first)],
        [second[0] / sum(second), 0.0, second[1] / sum(second)],
        [first[1] / sum(first), first[0] / sum(first), 0.0],
    ]
    assert_exact(label_weights(WORKED, NONE, sharpness=6.0, offset=0.5), rows)


def test_the_normalized_loss_of_the_worked_rows() -> None:
    # 1 - P: row 0 has 3/4 and 7/8, row 1 has 3/4 and 3/8, row 2 has 5/6 and 2/3. Uniform Q: a plain sum.
    plain = -(math.log(3 / 4 * 7 / 8) + math.log(3 / 4 * 3 / 8) + math.log(5 / 6 * 2 / 3)) / 3
    assert_exact(loss(WORKED, NONE, "normalized", sharpness=0.0), plain)
    # With row 0 clean its hardest negative, column 1, is left out: column 2 has all of Q, times B - 1 = 2.
    used = -(2 * math.log(7 / 8) + math.log(3 / 4 * 3 / 8) + math.log(5 / 6 * 2 / 3)) / 3
    assert_exact(loss(WORKED, FIRST, "normalized", sharpness=0.0), used)


def test_the_printed_loss_of_the_worked_rows() -> None:
    # Uniform Q, so S'_ij is the mean of S_kj over the two rows k != i: 7/12, 19/24 | 2/3, 5/8 | 3/4, 7/12.
    rest = [5 / 12, 5 / 24, 1 / 3, 3 / 8, 1 / 4, 5 / 12]
    assert_exact(loss(WORKED, NONE, "printed", sharpness=0.0), -sum(math.log(x) for x in rest) / 6)


def pbar(F: torch.Tensor) -> torch.Tensor:
    """The likelihood with the pair among the labels it does not belong to."""
    x = (SHARPNESS * (F.sigmoid() - OFFSET)).exp()
    return x / (1 + x.sum(1, keepdim=True) - x.diagonal()[:, None])


def chosen(F: torch.Tensor, clean: torch.Tensor, *, pair: bool = False, used: bool = False) -> torch.Tensor:
    """Q with an exclusion forgotten: of the pair, or of the hardest negative in use."""
    left_out = torch.zeros_like(F, dtype=torch.bool)
    if not pair:
        left_out.fill_diagonal_(True)
    if not used:
        left_out |= (torch.arange(len(F)) == hardest_negative(F)[0][:, None]) & clean[:, None]
    return pbar(F).masked_fill(left_out, -math.inf).softmax(1)


def off(F: torch.Tensor) -> torch.Tensor:
    return ~torch.eye(len(F), dtype=torch.bool)


def log_rest(F: torch.Tensor, dim: int = 1) -> torch.Tensor:
    return torch.log(1 - F.softmax(dim))


def right(F: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    return label_weights(F, clean, sharpness=SHARPNESS, offset=OFFSET)


NORMALIZED_TWINS = {
    "sign": lambda F, c: (len(F) - 1) * (right(F, c) * log_rest(F)).sum(1).mean(),
    "axis of the probability": lambda F, c: -(len(F) - 1) * (right(F, c) * log_rest(F, 0)).sum(1).mean(),
    "axis of the selection": lambda F, c: -(len(F) - 1) * (right(F.T, c) * log_rest(F)).sum(1).mean(),
    "mean for sum": lambda F, c: -(right(F, c) * log_rest(F)).sum(1).mean(),
    "sum over rows": lambda F, c: -(len(F) - 1) * (right(F, c) * log_rest(F)).sum(),
    "B for B - 1": lambda F, c: -len(F) * (right(F, c) * log_rest(F)).sum(1).mean(),
    "pair among its labels": lambda F, c: -(len(F) - 1) * (chosen(F, c, pair=True) * log_rest(F)).sum(1).mean(),
    "used hard negative kept": lambda F, c: -(len(F) - 1) * (chosen(F, c, used=True) * log_rest(F)).sum(1).mean(),
    "likelihood without softmax": lambda F, c: (
        -(len(F) - 1) * ((pbar(F) * (chosen(F, c) > 0)) * log_rest(F)).sum(1).mean()
    ),
    "sigmoid for softmax": lambda F, c: -(len(F) - 1) * (right(F, c) * torch.log(1 - F.sigmoid())).sum(1).mean(),
    "uniform selection": lambda F, c: loss(F, c, "normalized", sharpness=0.0),
    "no pair clean": lambda F, c: loss(F, c & False, "normalized"),
}

PRINTED_TWINS = {
    "sign": lambda F, c: -loss(F, c, "printed"),
    "not transposed": lambda F, c: -torch.log(1 - right(F, c) @ F.sigmoid())[off(F)].mean(),
    "product transposed": lambda F, c: -torch.log(1 - F.sigmoid() @ right(F, c))[off(F)].mean(),
    "probabilities for scores": lambda F, c: -torch.log(1 - right(F, c).T @ F.softmax(1))[off(F)].mean(),
    "pair among its labels": lambda F, c: -torch.log(1 - chosen(F, c, pair=True).T @ F.sigmoid())[off(F)].mean(),
    "used hard negative kept": lambda F, c: -torch.log(1 - chosen(F, c, used=True).T @ F.sigmoid())[off(F)].mean(),
    "pairs in the mean": lambda F, c: -torch.log(1 - right(F, c).T @ F.sigmoid()).mean(),
    "sum for mean": lambda F, c: -torch.log(1 - right(F, c).T @ F.sigmoid())[off(F)].sum() / len(F),
    "normalized reading": lambda F, c: loss(F, c, "normalized"),
}


@pytest.mark.parametrize("twin", NORMALIZED_TWINS.values(), ids=NORMALIZED_TWINS.keys())
def test_the_oracle_rejects_a_wrong_normalized_loss(twin) -> None:
    F, clean = case()
    assert_rejected(twin, F, clean, expected=expected(F, clean, "normalized"))


@pytest.mark.parametrize("twin", PRINTED_TWINS.values(), ids=PRINTED_TWINS.keys())
def test_the_oracle_rejects_a_wrong_printed_loss(twin) -> None:
    F, clean = case()
    assert_rejected(twin, F, clean, expected=expected(F, clean, "printed"))


@pytest.mark.parametrize("size", [2, 6, 12])
def test_the_normalized_reading_is_rcl_when_labels_are_uniform_and_none_is_excluded(size: int) -> None:
    F, _ = case(size)
    no_pair = torch.zeros(size, dtype=torch.bool)
    assert_exact(loss(F, no_pair, "normalized", sharpness=0.0), oracle.rcl_log(F.tolist()))
    plain = -torch.log1p(-F.softmax(1))[off(F)].sum() / size
    torch.testing.assert_close(loss(F, no_pair, "normalized", sharpness=0.0), plain, rtol=1e-10, atol=0)


def test_with_preference_or_exclusion_the_normalized_reading_is_not_rcl() -> None:
    F, clean = case(6)
    for other in (loss(F, clean & False, "normalized"), loss(F, clean, "normalized", sharpness=0.0)):
        assert not math.isclose(other.item(), oracle.rcl_log(F.tolist()), rel_tol=1e-3)


@given(st.floats(0.1, 20), st.integers(2, 9))
def test_harder_negatives_are_chosen_more_often_and_a_row_sums_to_1(sharpness: float, size: int) -> None:
    F = random_logits(size)
    labels = label_weights(F, torch.zeros(size, dtype=torch.bool), sharpness=sharpness, offset=0.5)
    torch.testing.assert_close(labels.sum(1), torch.ones(size, dtype=torch.float64))
    assert (labels.diagonal() == 0).all()
    hardest = labels.gather(1, hardest_negative(F)[0][:, None])
    assert (hardest >= labels.amax(1, keepdim=True) - 1e-12).all()


@pytest.mark.parametrize("reading", ["normalized", "printed"])
def test_the_loss_is_invariant_to_the_order_of_the_pairs(reading: str) -> None:
    F, clean = case(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    moved = loss(F[order][:, order], clean[order], reading)
    torch.testing.assert_close(moved, loss(F, clean, reading), rtol=1e-12, atol=0)


def test_with_uniform_labels_the_normalized_loss_is_invariant_to_a_shift_of_all_logits() -> None:
    F, clean = case(9)
    for shift in (-30.0, 5.0):
        moved = loss(F + shift, clean, "normalized", sharpness=0.0)
        torch.testing.assert_close(moved, loss(F, clean, "normalized", sharpness=0.0), rtol=1e-10, atol=0)


def test_the_normalized_loss_is_zero_for_dominant_pairs_and_grows_with_a_dominant_negative() -> None:
    no_pair = torch.zeros(3, dtype=torch.bool)
    assert loss(50 * torch.eye(3), no_pair, "normalized") < 1e-12
    F = torch.zeros(3, 3, dtype=torch.float64)
    F[0, 1] = 1000.0
    # Row 0: log(1 - P_01) = log 2 - 1000 up to e^-1000, and log(1 - P_02) = 0; rows 1 and 2: 2 log(3/2) each.
    uniform = (1000 - math.log(2) + 4 * math.log(3 / 2)) / 3
    assert_exact(loss(F, no_pair, "normalized", sharpness=0.0), uniform)


def test_one_minus_p_keeps_its_digits_when_p_rounds_to_1() -> None:
    F = torch.tensor([[0.0, 40.0], [0.0, 0.0]])  # float32: P_01 = 1 - e^-40 rounds to 1
    assert F.softmax(1)[0, 1] == 1
    assert log_complement(F)[0, 1] == pytest.approx(-40, rel=1e-6)
    small = torch.tensor([[20.0, 0.0], [0.0, 0.0]])  # 1 - P_01 rounds to 1, log(1 - P) = -e^-20
    assert log_complement(small)[0, 1] == pytest.approx(-math.exp(-20), rel=1e-5)


def test_a_row_with_no_label_left_contributes_nothing() -> None:
    F = torch.tensor([[2.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    # Two pairs, the first clean: its only negative is in use. Row 1: P_10 = 1 / (1 + e), times B - 1 = 1.
    row_1 = -math.log(1 - 1 / (1 + math.e))
    assert_exact(loss(F, torch.tensor([True, False]), "normalized"), row_1 / 2)
    for reading in ("normalized", "printed"):
        assert loss(torch.zeros(1, 1), torch.tensor([False]), reading) == 0


@pytest.mark.parametrize("reading", ["normalized", "printed"])
def test_with_fixed_labels_the_loss_passes_a_numerical_gradient_check(reading: str) -> None:
    F, clean = case(5)
    labels = right(F, clean)
    of_labels = {"normalized": normalized_loss, "printed": printed_loss}[reading]
    leaf = F.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: of_labels(x, labels), (leaf,))
    # The loss takes its labels as fixed: same gradient.
    (found,) = torch.autograd.grad(loss(leaf, clean, reading), leaf)
    (fixed,) = torch.autograd.grad(of_labels(leaf, labels), leaf)
    torch.testing.assert_close(found, fixed, rtol=1e-12, atol=0)


def test_labels_that_carry_a_gradient_are_rejected() -> None:
    F, clean = case(5)
    leaf = F.clone().requires_grad_()
    live = (pbar(leaf).masked_fill(right(F, clean) == 0, -math.inf)).softmax(1)
    torch.testing.assert_close(live.detach(), right(F, clean), rtol=1e-10, atol=0)
    (loose,) = torch.autograd.grad(normalized_loss(leaf, live), leaf)
    (found,) = torch.autograd.grad(loss(leaf, clean, "normalized"), leaf)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(loose, found, rtol=1e-10, atol=1e-12)


def test_label_weights_carry_no_gradient() -> None:
    F, clean = case(5)
    assert not right(F.requires_grad_(), clean).requires_grad


def test_the_hard_negative_of_a_clean_row_is_no_label() -> None:
    labels = right(WORKED, FIRST_AND_LAST)
    assert labels[0, 1] == 0
    assert labels[2, 1] == 0
    assert labels[1, 2] > 0


def test_the_printed_loss_is_finite_where_the_paper_has_no_logarithm() -> None:
    # Column 0 is the label of every row, so S'_0j sums S_kj over many rows and passes 1.
    F = torch.full((5, 5), -9.0, dtype=torch.float64)
    F[:, 0] = 9.0
    leaf = F.clone().requires_grad_()
    no_pair = torch.zeros(5, dtype=torch.bool)
    labels = label_weights(F, no_pair, sharpness=400.0, offset=0.9)
    assert ((labels.T @ F.sigmoid()) >= 1).any()
    found = loss(leaf, no_pair, "printed", sharpness=400.0, offset=0.9)
    found.backward()
    assert found.isfinite()
    assert leaf.grad.isfinite().all()


def test_an_unknown_reading_raises() -> None:
    with pytest.raises(ValueError, match="reading must be one of normalized, printed; got 'as printed'"):
        loss(WORKED, NONE, "as printed")
