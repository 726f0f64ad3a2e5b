"""The fused objective against `srem_reference`: values, statistics and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from logit_cases import SREM_SETTINGS, mixed_logits, repeated_ids
from sremkit import SREM, Terms
from sremkit.objectives import srem_reference

STATISTICS = [f"{name}_{way}" for name in ("energy", "clean", "weight", "active") for way in ("i2t", "t2i")]
FUSED_SETTINGS = {name: s for name, s in SREM_SETTINGS.items() if s.get("reading") != "printed"}
CALLS = [(name, False) for name in FUSED_SETTINGS]
CALLS += [(name, True) for name in FUSED_SETTINGS if FUSED_SETTINGS[name].get("complementary", True)]


def fused_and_reference(logits: Tensor, settings: dict, **options) -> tuple[tuple[Terms, Tensor], tuple[Terms, Tensor]]:
    """Terms and gradient of the logits of both implementations."""
    criterion = SREM(**settings)
    one, two = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    fused, reference = criterion(one, **options), srem_reference(two, criterion, **options)
    fused.total.backward()
    reference.total.backward()
    return (fused, one.grad), (reference, two.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "repeated images"])
@pytest.mark.parametrize(("name", "warmup"), CALLS)
def test_fused_equals_reference(name: str, warmup: bool, masked: bool, dtype: torch.dtype) -> None:
    close = {"rtol": 1e-10, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 1e-7}
    ids = repeated_ids(12) if masked else None
    (fused, gradient), (reference, expected_gradient) = fused_and_reference(
        mixed_logits().to(dtype), FUSED_SETTINGS[name], warmup=warmup, image_ids=ids
    )
    torch.testing.assert_close(fused.total, reference.total, **close)
    assert list(fused.parts) == list(reference.parts)
    torch.testing.assert_close(fused.parts, reference.parts, **close)
    for statistic in STATISTICS:
        torch.testing.assert_close(getattr(fused, statistic), getattr(reference, statistic), **close)
    torch.testing.assert_close(gradient, expected_gradient, **close)
    assert gradient.dtype == dtype
    assert gradient.abs().max() > 1e-3


def test_the_logits_have_clean_noisy_active_and_satisfied_pairs() -> None:
    """Otherwise the test above would compare zeros."""
    out = SREM()(mixed_logits())
    for clean, active in ((out.clean_i2t, out.active_i2t), (out.clean_t2i, out.active_t2i)):
        assert clean.any()
        assert not clean.all()
        assert active.any()
    assert all(part > 0 for part in out.parts.values())


@pytest.mark.parametrize("settings", [{}, {"filtration": False}], ids=str)
@pytest.mark.parametrize("lift", [-6.0, 6.0])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_batches_equal_the_reference(size: int, lift: float, settings: dict) -> None:
    """Of two pairs, a clean one has no complementary label; a single pair has no negative."""
    logits = mixed_logits(size) + lift * torch.eye(size)
    for ids in (None, torch.tensor([0, 1, 0])[:size]):
        (fused, gradient), (reference, expected) = fused_and_reference(logits, settings, image_ids=ids)
        torch.testing.assert_close(fused.total, reference.total, rtol=1e-10, atol=0)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13)


def test_the_closed_form_gradient_passes_a_numerical_check() -> None:
    """Weights and labels carry no gradient by design, so they are disabled here."""
    criterion = SREM(weighting=False, rectification=False, energy_weight=0.3)
    for ids in (None, repeated_ids(8)):
        logits = mixed_logits(8).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, ids=ids: criterion(x, image_ids=ids).total, (logits,))


def test_the_reference_has_a_second_derivative() -> None:
    logits = mixed_logits(6).requires_grad_()
    (gradient,) = torch.autograd.grad(srem_reference(logits).total, logits, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), logits)
    assert second.abs().max() > 0
