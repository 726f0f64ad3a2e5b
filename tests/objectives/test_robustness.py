"""The objective on batches that real training throws at it."""

from __future__ import annotations

import math

import pytest
import torch

from logit_cases import different, random_logits, repeated_ids
from oracles import srem as oracle
from sremkit import SREM
from sremkit.objectives.fast.tiled import TiledSREM

BOTH = pytest.mark.parametrize("reading", ["normalized", "printed"])


def run(F: torch.Tensor, **options):
    """The terms and the gradient, both of which have to be finite."""
    criterion = SREM(reading=options.pop("reading", "normalized"))
    leaf = F.detach().clone().requires_grad_()
    out = criterion(leaf, **options)
    out.total.backward()
    assert out.total.isfinite()
    assert leaf.grad.isfinite().all()
    for name, value in vars(out).items():
        if name not in ("parts", "report"):
            assert value.isfinite().all(), name
    return out, leaf.grad


@BOTH
@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("logit", [-1e4, -3.0, 0.0, 3.0, 1e4])
def test_a_batch_of_one_pair_has_only_its_energy_bound(logit: float, warmup: bool, reading: str) -> None:
    out, gradient = run(torch.tensor([[logit]]), warmup=warmup, reading=reading)
    assert out.energy_i2t == -logit
    assert out.weight_i2t == 1
    assert not out.active_i2t
    # Clean (logit > 0): both directions (-logit + 4)_+^2. Noisy: (0 + logit)_+^2 = 0. In the warm-up nothing.
    bound = 2 * max(0.0, 4 - logit) ** 2 if logit > 0 else 0.0
    slope = -4 * max(0.0, 4 - logit) if logit > 0 else 0.0
    assert out.total.item() == pytest.approx(0.0 if warmup else 0.01 * bound)
    assert gradient.item() == pytest.approx(0.0 if warmup else 0.01 * slope)


@BOTH
@pytest.mark.parametrize("value", [-1e4, 0.0, 1e4])
def test_equal_logits_leave_the_clean_set_empty(value: float, reading: str) -> None:
    out, _ = run(torch.full((6, 6), value), reading=reading)
    assert not out.clean_i2t.any()
    assert out.parts["ranking_i2t"] == 0
    assert (out.weight_i2t < 1e-3).all()


@BOTH
def test_the_noisy_set_may_be_empty(reading: str) -> None:
    out, _ = run(8 * torch.eye(6) - 2, reading=reading)
    assert out.clean_i2t.all()
    assert out.clean_t2i.all()


@BOTH
@pytest.mark.parametrize("size", [2, 3, 64, 130])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_of_ten_thousand_stay_finite_and_exact(size: int, masked: bool, reading: str) -> None:
    signs = random_logits(size, lift=0.0).sign().float()
    image_ids = torch.arange(size) // 2 if masked else None
    assert_finite_and_exact(1e4 * signs, reading=reading, image_ids=image_ids)
    assert_finite_and_exact(1e4 * torch.eye(size), reading=reading)
    assert_finite_and_exact(-1e4 * torch.eye(size), reading=reading)
    assert_finite_and_exact(1e4 * torch.ones(size, size).tril(), reading=reading, warmup=True)


def assert_finite_and_exact(F: torch.Tensor, *, image_ids: torch.Tensor | None = None, **options) -> None:
    """Ranking and energies as the loops have them; the normalized complementary loss as in float64.

    The loops' probabilities underflow to log 0 here, so they are no measure for it; the printed one is cut off
    at the number format's own epsilon.
    """
    out, _ = run(F, image_ids=image_ids, **options)
    valid = None if image_ids is None else different(image_ids).tolist()
    warmup = options.get("warmup", False)
    expected = oracle.total(F.double().tolist(), valid=valid, warmup=warmup, complementary=False)
    if options["reading"] == "normalized":
        wide, _ = run(F.double(), image_ids=image_ids, **options)
        expected |= {name: wide.parts[name].item() for name in ("complementary_i2t", "complementary_t2i")}
    else:
        expected = {name: value for name, value in expected.items() if "complementary" not in name}
    del expected["total"]
    for name, value in expected.items():
        # Of numbers of ten thousand float32 keeps three digits behind the point; the log of a few is left of them.
        assert out.parts[name].item() == pytest.approx(value, rel=1e-5, abs=1e-4), name


def test_the_loss_of_a_dominant_negative_is_exact_in_float32() -> None:
    F = torch.zeros(2, 2)
    F[0, 1] = 1e4
    out, gradient = run(F, warmup=True)
    # Row 0: -log(1 - P_01) = 10000 + log(1 + e^-10000) = 10000; row 1: log 2. Columns: column 1 alike. Mean of two.
    assert out.total.item() == pytest.approx(1e4 + math.log(2), rel=1e-6)
    assert gradient[0, 1].item() == pytest.approx(1.0)  # half from the row, half from the column


def test_small_probabilities_keep_their_digits_in_float32() -> None:
    """The gradient of the energy is -P; where a negative leads by 20, the others have P of about e^-20 = 2e-9."""
    F = random_logits(6, scale=0.1, lift=0.0).float() + 20 * torch.eye(6).roll(1, dims=1)
    one, two = F.clone().requires_grad_(), F.double().requires_grad_()
    criterion = SREM(complementary=False, energy_weight=1.0)
    for leaf in (one, two):
        criterion(leaf).total.backward()
    assert 0 < two.grad[0, 4].abs() < 1e-6
    torch.testing.assert_close(one.grad.double(), two.grad, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    F = random_logits(9).to(dtype)
    out, gradient = run(F)
    exact, _ = run(F.float())
    assert out.total.dtype == torch.float32
    assert out.energy_i2t.dtype == torch.float32
    assert gradient.dtype == dtype
    assert out.total == exact.total


def test_float64_stays_float64() -> None:
    out, gradient = run(random_logits(5))
    assert out.total.dtype == gradient.dtype == out.weight_t2i.dtype == torch.float64


@BOTH
def test_autocast_changes_nothing(reading: str) -> None:
    F = random_logits(9).float()
    plain, plain_gradient = run(F, reading=reading)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, mixed_gradient = run(F, reading=reading)
    assert mixed.total == plain.total
    assert torch.equal(mixed_gradient, plain_gradient)


def test_float32_agrees_with_the_float64_oracle() -> None:
    F = random_logits(12)
    out, _ = run(F.float(), image_ids=repeated_ids(12))
    valid = [[i == j or bool(repeated_ids(12)[i] != repeated_ids(12)[j]) for j in range(12)] for i in range(12)]
    expected = oracle.total(F.float().double().tolist(), valid=valid)
    assert out.total.item() == pytest.approx(expected["total"], rel=1e-5)


def test_the_memory_layout_of_the_logits_does_not_matter() -> None:
    F = random_logits(70)
    one, gradient = run(F)
    for view in (F.T.contiguous().T, torch.stack([F, F], 2)[..., 0], F.repeat(2, 2)[:70, 70:]):
        assert not view.is_contiguous()
        leaf = view.requires_grad_()
        two = SREM()(leaf)
        two.total.backward()
        torch.testing.assert_close(two.total, one.total, rtol=1e-12, atol=0)
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 1)])
def test_nan_and_infinite_logits_raise(value: float, place: tuple[int, int]) -> None:
    F = random_logits(4).float()
    F[place] = value
    with pytest.raises(ValueError, match="logits hold NaN or infinite values; check for"):
        SREM()(F)


def test_the_check_for_finite_logits_can_be_disabled() -> None:
    F = random_logits(4).float()
    F[1, 2] = math.nan
    assert SREM(check_finite=False)(F).total.isnan()


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, 3), r"square matrix, rows images and columns texts, .*; got shape \(2, 3\)"),
        (torch.zeros(4), r"got shape \(4,\)"),
        (torch.zeros(0, 0), r"got shape \(0, 0\)"),
        (torch.zeros(3, 3, dtype=torch.int64), r"floating-point numbers, got torch.int64"),
    ],
)
def test_invalid_logits_raise(logits: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SREM()(logits)


def test_inputs_that_are_no_tensors_raise() -> None:
    logits = random_logits(4)
    with pytest.raises(TypeError, match=r"^logits must be a torch\.Tensor, got numpy\.ndarray; make one with"):
        SREM()(logits.numpy())
    for ids, kind in (([1, 1, 2, 3], "list"), (("a", "a", "b", "c"), "tuple")):
        with pytest.raises(TypeError, match=rf"^image_ids, integers, must be a torch\.Tensor, got {kind}; make one"):
            SREM()(logits, image_ids=ids)


@pytest.mark.parametrize("objective", [SREM(), TiledSREM()])
def test_embeddings_and_image_ids_that_are_no_tensors_raise(objective: SREM) -> None:
    emb = torch.ones(4, 2)
    with pytest.raises(TypeError, match=r"^image_ids, integers, must be a torch\.Tensor, got list"):
        objective.from_embeddings(emb, emb, 1.0, image_ids=[1, 1, 2, 3])
    with pytest.raises(TypeError, match=r"^text_emb must be a torch\.Tensor, got numpy\.ndarray"):
        objective.from_embeddings(emb, emb.numpy(), 1.0)


def test_image_ids_of_the_wrong_number_raise() -> None:
    with pytest.raises(ValueError, match=r"one number for each of the 4 pairs; got shape \(3,\)"):
        SREM()(random_logits(4), image_ids=torch.arange(3))


@BOTH
def test_a_batch_of_one_image_alone_has_no_negatives(reading: str) -> None:
    F = random_logits(5).float().fill_diagonal_(1.0)
    out, gradient = run(F, image_ids=torch.zeros(5, dtype=torch.long), reading=reading)
    assert out.clean_i2t.all()
    assert out.parts["ranking_i2t"] == out.parts["complementary_t2i"] == 0
    # Every pair is clean with energy -1, so both directions add 0.01 * 2 * (-1 + 4) / 5 times dE/dF = -1.
    torch.testing.assert_close(gradient.diagonal(), torch.full((5,), -0.024))
    assert (gradient[~torch.eye(5, dtype=torch.bool)] == 0).all()


def test_without_a_gradient_the_values_are_the_same() -> None:
    F = random_logits(9)
    with torch.no_grad():
        quiet = SREM()(F.clone().requires_grad_())
    assert not quiet.total.requires_grad
    assert quiet.total == SREM()(F.requires_grad_()).total


def test_the_gradient_is_scaled_by_the_upstream_gradient() -> None:
    F = random_logits(9)
    _, gradient = run(F)
    leaf = F.clone().requires_grad_()
    (-3 * SREM()(leaf).total).backward()
    torch.testing.assert_close(leaf.grad, -3 * gradient, rtol=1e-12, atol=0)


def test_a_retained_graph_gives_the_same_gradient_again() -> None:
    """The first backward pass releases its gradient matrix, so the second computes it again."""
    _, gradient = run(random_logits(9))
    leaf = random_logits(9).requires_grad_()
    total = SREM()(leaf).total
    (first,) = torch.autograd.grad(total, leaf, retain_graph=True)
    first.zero_()
    (second,) = torch.autograd.grad(2 * total, leaf, retain_graph=True)
    (third,) = torch.autograd.grad(total, leaf)
    assert torch.equal(second, 2 * gradient)
    assert torch.equal(third, gradient)


def test_gradients_of_two_batches_add_up() -> None:
    leaf = random_logits(9).requires_grad_()
    SREM()(leaf).total.backward()
    SREM()(leaf).total.backward()
    _, gradient = run(random_logits(9))
    torch.testing.assert_close(leaf.grad, 2 * gradient, rtol=1e-12, atol=0)


def test_a_second_derivative_raises() -> None:
    leaf = random_logits(4).requires_grad_()
    with pytest.raises(RuntimeError, match="SREM has no second derivative; use"):
        torch.autograd.grad(SREM()(leaf).total, leaf, create_graph=True)


def test_the_logits_are_not_modified() -> None:
    F = random_logits(64)
    before = F.clone()
    SREM()(F.requires_grad_(), image_ids=torch.arange(64) // 2).total.backward()
    assert torch.equal(F.detach(), before)
