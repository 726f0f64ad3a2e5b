"""Dropout from sixteen bits: rate, scale and gradient, and PyTorch's own elsewhere."""

from __future__ import annotations

import pytest
import torch

from sremkit.ops.functional import Dropout


@pytest.mark.parametrize("share", [0.1, 0.4, 0.5, 0.9])
def test_the_rate_and_the_mean_are_right(share: float) -> None:
    torch.manual_seed(0)
    y = Dropout(share)(torch.ones(500, 1001, dtype=torch.float64))
    assert (y == 0).double().mean().item() == pytest.approx(share, abs=0.003)  # some six deviations
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert y.max().item() == pytest.approx(1 / (1 - share), rel=2e-4)


def test_neighbouring_elements_are_independent() -> None:
    """Four elements share a draw: each of the sixteen patterns must come equally often."""
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(100_000, 4)) > 0
    patterns = (kept.long() * torch.tensor([1, 2, 4, 8])).sum(dim=1).bincount(minlength=16)
    assert patterns.min() > 5_800  # 6250 expected, deviation 77
    assert patterns.max() < 6_700


def test_what_was_dropped_has_no_gradient_and_the_rest_the_scale() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 300, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.25)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient == 0, y == 0)
    torch.testing.assert_close(gradient[y != 0], torch.full_like(gradient[y != 0], 4 / 3))


def test_masks_follow_the_generator() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(Dropout(0.5)(torch.ones(401, 250)))
    assert torch.equal(*results)
    assert not torch.equal(results[0], Dropout(0.5)(torch.ones(401, 250)))


def test_in_evaluation_and_at_the_ends_it_is_pytorchs() -> None:
    x = torch.randn(600, 500)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))


def test_for_few_elements_it_is_pytorchs() -> None:
    results = []
    for kind in (Dropout, torch.nn.Dropout):
        torch.manual_seed(3)
        results.append(kind(0.5)(torch.ones(99, 101)))
    assert torch.equal(*results)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_consecutive_masks_are_independent() -> None:
    """In half precision PyTorch's own masks overlap: what one drops here, the next drops a few places on."""
    torch.manual_seed(0)
    dropout, x = Dropout(0.5), torch.ones(128, 1024, device="cuda", dtype=torch.bfloat16)
    first, second = (dropout(x).ne(0).float() for _ in range(2))
    for shift in range(-16, 17):
        agreement = (first.roll(shift, dims=1) == second).float().mean().item()
        assert agreement == pytest.approx(0.5, abs=0.01), shift  # seven deviations
