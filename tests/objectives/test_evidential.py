"""DECL's evidential loss and growing hardness against loops, hand values and wrong twins."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import decl as oracle
from sremkit.objectives.evidential import (
    _kl_to_uniform,
    dynamic_hinge,
    evidence,
    evidential,
    has_most_evidence,
)
from sremkit.objectives.triplet import triplet

CLEAN = torch.tensor([True, False, True, True, False, True])


def similarities(b: int = 6, seed: int = 3) -> torch.Tensor:
    return torch.randn(b, b, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).tanh()


@pytest.mark.parametrize("kl_weight", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_evidential_loss_matches_the_oracle(temperature: float, kl_weight: float) -> None:
    s = similarities()
    e = oracle.evidence(s.tolist(), temperature)
    expected = torch.tensor(oracle.evidential(e, CLEAN.tolist(), kl_weight), dtype=torch.float64)
    got = evidential(evidence(s, temperature=temperature), CLEAN, kl_weight=kl_weight)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=0)


def test_the_evidential_loss_by_hand() -> None:
    # Similarities 0: evidence 1, a = (2, 2), S = 4, expected (1/2, 1/2).
    # error 1/4 + 1/4; variance 2 * 2 * 2 / (16 * 5) = 1/10; both for clean and noisy rows.
    # Clean: a~ = (1, 2): KL = lnG(3) - lnG(1) - lnG(2) - lnG(2) + 1 * (psi(2) - psi(3)) = ln 2 - 1/2.
    # Noisy: a~ = (2, 2): KL = lnG(4) - lnG(2) + 2 (psi(2) - psi(4)) = ln 6 - 2 (1/2 + 1/3).
    e = evidence(torch.zeros(2, 2), temperature=0.1)
    clean, noisy = evidential(e, torch.tensor([True, False]), kl_weight=0.1)
    assert clean.item() == pytest.approx(0.6 + 0.1 * (math.log(2) - 1 / 2), rel=1e-12)
    assert noisy.item() == pytest.approx(0.6 + 0.1 * (math.log(6) - 5 / 3), rel=1e-12)


def _alpha(s: torch.Tensor) -> torch.Tensor:
    return (s / 0.1).exp() + 1


TWINS = {
    "temperature multiplies": lambda s: evidential(evidence(s, temperature=10), CLEAN, kl_weight=0.1),
    "axis": lambda s: evidential(evidence(s, temperature=0.1).T, CLEAN, kl_weight=0.1),
    "all clean": lambda s: evidential(evidence(s, temperature=0.1), torch.ones(6, dtype=torch.bool), kl_weight=0.1),
    "prior added twice": lambda s: evidential(_alpha(s), CLEAN, kl_weight=0.1),
    "no divergence": lambda s: evidential(evidence(s, temperature=0.1), CLEAN, kl_weight=0.0),
    "divergence in float32": lambda s: evidential(evidence(s, temperature=0.1).float(), CLEAN, kl_weight=0.1),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    s = similarities()
    expected = oracle.evidential(oracle.evidence(s.tolist(), 0.1), CLEAN.tolist(), 0.1)
    assert twin(s).tolist() != pytest.approx(expected, rel=1e-10)


def test_the_divergence_keeps_the_target_s_evidence() -> None:
    """The answer's own evidence is no fault: with all other evidence at 0 the divergence is 0."""
    e = torch.zeros(4, 4, dtype=torch.float64).fill_diagonal_(1e4)
    yes, no = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)

    def divergence(clean: torch.Tensor) -> torch.Tensor:
        return evidential(e, clean, kl_weight=1.0) - evidential(e, clean, kl_weight=0.0)

    assert divergence(yes).abs().max() < 1e-9
    assert divergence(no).min() > 5


def test_a_clean_pair_is_pulled_together_and_a_noisy_one_apart() -> None:
    s = (0.2 * similarities() + 0.5 * torch.eye(6)).requires_grad_()
    evidential(evidence(s, temperature=0.1), CLEAN, kl_weight=0.1).sum().backward()
    assert s.grad is not None
    assert (s.grad.diagonal()[CLEAN] < 0).all()
    assert (s.grad.diagonal()[~CLEAN] > 0).all()


@given(seed=st.integers(0, 1000), b=st.integers(1, 9))
def test_error_variance_and_divergence_have_their_bounds(seed: int, b: int) -> None:
    """Squared error and variance are at most 2 and 1; the divergence is not negative."""
    e = evidence(similarities(b, seed), temperature=0.1)
    clean = torch.arange(b) % 2 == 0
    without = evidential(e, clean, kl_weight=0.0)
    divergence = evidential(e, clean, kl_weight=1.0) - without
    assert (without >= 0).all()
    assert (without <= 3).all()
    assert (divergence > -1e-8).all()


def test_gradients_are_correct() -> None:
    s = similarities(4).requires_grad_()
    clean = CLEAN[:4]
    assert torch.autograd.gradcheck(lambda x: evidential(evidence(x, temperature=0.5), clean, kl_weight=0.1), s)
    assert torch.autograd.gradcheck(lambda x: dynamic_hinge(x, margin=0.2, num_hardest=2), s)


def test_float32_similarities_are_computed_in_float64() -> None:
    """In float32 lnG of a sum of evidence of 2e6 is rounded to units, and the divergence to noise."""
    s = torch.full((100, 100), 0.99)
    expected = oracle.evidential_row([math.exp(float(s[0, 0]) / 0.1)] * 100, 0, 0.1)
    got = evidential(evidence(s, temperature=0.1), torch.ones(100, dtype=torch.bool), kl_weight=0.1)
    # rtol: the oracle and lgamma of the library differ by 1e-13 of numbers 1e5 times the result
    assert got[0].item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("num_hardest", [1, 2, 5, 6, 128])
def test_dynamic_hinge_matches_the_oracle(num_hardest: int) -> None:
    s = similarities()
    expected = torch.tensor(oracle.hardness(s.tolist(), 0.2, num_hardest), dtype=torch.float64)
    got = dynamic_hinge(s, margin=0.2, num_hardest=num_hardest)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("num_hardest", [1, 2, 5, 6, 128])
def test_a_tensor_num_hardest_gives_the_same_hinges_and_gradients(num_hardest: int) -> None:
    s = similarities()
    valid = torch.ones(len(s), len(s), dtype=torch.bool)
    valid[0, 3] = valid[3, 0] = False
    found = []
    for count in (num_hardest, torch.tensor(num_hardest)):
        leaf = s.clone().requires_grad_()
        hinges = dynamic_hinge(leaf, margin=0.2, num_hardest=count, valid=valid)
        hinges.square().sum().backward()
        found.append((hinges.detach(), leaf.grad))
    assert (found[0][0] > 0).any()
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-14)


def test_dynamic_hinge_goes_from_the_mean_to_the_hardest() -> None:
    s = similarities()
    for num_hardest, reduction in ((6, "mean"), (1, "hardest")):
        torch.testing.assert_close(
            dynamic_hinge(s, margin=0.2, num_hardest=num_hardest),
            triplet(s, margin=0.2, reduction=reduction),
            rtol=1e-12,
            atol=1e-15,
        )


def test_dynamic_hinge_by_hand() -> None:
    # Pair 0 with 0.5 on the diagonal, margin 0.2: image 0 as query has 0.2 + 0.6 - 0.5 = 0.3 and 0.2 + 0.4 - 0.5 = 0.1;
    # text 0 has 0.2 + 0.5 - 0.5 = 0.2 and 0.2 - 0.4 - 0.5 < 0. Two hardest: (0.3 + 0.1) / 2 + (0.2 + 0) / 2.
    s = torch.tensor([[0.5, 0.6, 0.4], [0.5, 0.9, 0.0], [-0.4, 0.0, 0.9]], dtype=torch.float64)
    assert dynamic_hinge(s, margin=0.2, num_hardest=2)[0].item() == pytest.approx(0.3)
    assert dynamic_hinge(s, margin=0.2, num_hardest=1)[0].item() == pytest.approx(0.5)


def test_has_most_evidence_matches_the_oracle_and_a_hand_value() -> None:
    seen = set()
    for seed in range(20):
        e = evidence(similarities(seed=seed) + 0.8 * torch.eye(6), temperature=0.1)
        assert has_most_evidence(e).tolist() == oracle.has_most_evidence(e.tolist())
        seen |= set(has_most_evidence(e).tolist())
    assert seen == {True, False}
    # Pair 0: 2 * 3 = 6 against 5 + 2 = 7, lost though 3 > 2 in the column; pair 1: 2 * 4 = 8 against 7, won.
    assert has_most_evidence(torch.tensor([[3.0, 5.0], [2.0, 4.0]])).tolist() == [False, True]
    assert has_most_evidence(torch.ones(3, 3)).tolist() == [False] * 3  # a tie counts against the pair
    assert has_most_evidence(torch.ones(1, 1)).tolist() == [True]


def test_repeated_images_are_no_candidates() -> None:
    """As if the candidate were not there: same loss as without its column, whatever its similarity."""
    s = similarities()
    valid = torch.ones(6, 6, dtype=torch.bool)
    valid[0, 1] = valid[1, 0] = False
    changed = s.clone()
    changed[0, 1] = changed[1, 0] = 3.0
    for loss in (
        lambda x, v: evidential(evidence(x, temperature=0.1), CLEAN, kl_weight=0.1, valid=v),
        lambda x, v: dynamic_hinge(x, margin=0.2, num_hardest=2, valid=v),
        lambda x, v: has_most_evidence(evidence(x + 1.5 * torch.eye(6), temperature=0.1), valid=v).float(),
    ):
        assert torch.equal(loss(s, valid), loss(changed, valid))
        assert not torch.equal(loss(s, None), loss(changed, None))
    row = oracle.evidential_row([e for j, e in enumerate(oracle.evidence(s.tolist(), 0.1)[0]) if j != 1], 0, 0.1)
    got = evidential(evidence(s, temperature=0.1), CLEAN, kl_weight=0.1, valid=valid)
    assert got[0].item() == pytest.approx(row, rel=1e-10)


def test_invalid_options_raise() -> None:
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        evidence(similarities(), temperature=0.0)
    with pytest.raises(ValueError, match="num_hardest must be at least 1, got 0"):
        dynamic_hinge(similarities(), margin=0.2, num_hardest=0)


@pytest.mark.parametrize("largest", [690.0, 800.0, 1e4])
@pytest.mark.parametrize("wrong_ones", [False, True])
def test_enormous_similarities_give_finite_losses_and_gradients(largest: float, wrong_ones: bool) -> None:
    """float64 ends at exp(709.8); logits that are taken for similarities may well be divided to more."""
    where = torch.eye(6) if not wrong_ones else 1 - torch.eye(6)
    s = (largest * where.double()).requires_grad_()
    gathered = evidence(s, temperature=1.0)
    loss = evidential(gathered, CLEAN, kl_weight=0.1) + evidential(gathered.T, CLEAN, kl_weight=0.1)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(s.grad).all()


def test_evidence_is_a_clamped_exponential() -> None:
    s = torch.tensor([[-800.0, 0.0], [2.5, 300.0]], dtype=torch.float64)
    assert torch.equal(evidence(s, temperature=1.0), s.exp())
    assert evidence(s, temperature=0.5)[1].tolist() == [math.exp(5.0), pytest.approx(math.exp(300.0))]


def exact_divergence(concentration: list[mpmath.mpf]) -> mpmath.mpf:
    """KL(Dir(a) || Dir(1)) as printed, with 400 digits, so that what cancels leaves enough."""
    total, psi, ln_gamma = mpmath.fsum(concentration), mpmath.digamma, mpmath.loggamma
    surprise = mpmath.fsum((a - 1) * (psi(a) - psi(total)) for a in concentration)
    return ln_gamma(total) - mpmath.fsum(map(ln_gamma, concentration)) - ln_gamma(len(concentration)) + surprise


@pytest.mark.parametrize("largest", [3.0, 11.5, 11.6, 20.0, 37.0, 45.0, 120.0, 290.0])
def test_the_divergence_keeps_its_digits_however_large_the_evidence(largest: float) -> None:
    """One noisy row; exp(11.51) is where the series takes over. The printed form gives 202 for 88 at 37."""
    exponents = torch.tensor([largest, largest - 1.5, 0.3, -2.0], dtype=torch.float64, requires_grad=True)
    counts = torch.ones(1, 4, dtype=torch.float64)
    found = _kl_to_uniform(exponents.exp()[None] + 1, counts)
    found.sum().backward()
    with mpmath.workdps(400):

        def exact(values: list[mpmath.mpf]) -> mpmath.mpf:
            return exact_divergence([1 + mpmath.exp(x) for x in values])

        at = [mpmath.mpf(x) for x in exponents.tolist()]
        step = mpmath.mpf(10) ** -30
        slopes = [(exact([x + step * (j == k) for j, x in enumerate(at)]) - exact(at)) / step for k in range(4)]
        assert found.item() == pytest.approx(float(exact(at)), rel=1e-9)
        assert exponents.grad.tolist() == pytest.approx([float(x) for x in slopes], rel=1e-6, abs=1e-9)
