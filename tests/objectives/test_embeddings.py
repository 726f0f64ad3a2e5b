"""The objective of two sets of embeddings."""

from __future__ import annotations

import pytest
import torch

from sremkit import SREM


def test_embeddings_give_scaled_and_shifted_products() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(6, 4, generator=generator, requires_grad=True) for _ in range(2))
    scale = torch.tensor(3.0, requires_grad=True)
    ids = torch.tensor([0, 1, 2, 0, 3, 4])
    out = SREM().from_embeddings(images, texts, scale, -1.0, image_ids=ids)
    expected = SREM()(3.0 * (images @ texts.T) - 1.0, image_ids=ids)
    torch.testing.assert_close(out.total, expected.total)
    out.total.backward()
    assert scale.grad != 0
    assert images.grad.abs().sum() > 0
    warm = SREM().from_embeddings(images, texts, 3.0, -1.0, warmup=True)
    torch.testing.assert_close(warm.total, SREM()(3.0 * (images @ texts.T) - 1.0, warmup=True).total)


def test_embeddings_in_half_precision_under_autocast_are_multiplied_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(8, 64, generator=generator).bfloat16() for _ in range(2))
    expected = SREM()(images.float() @ texts.float().T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = SREM().from_embeddings(images, texts, 1.0)
    torch.testing.assert_close(out.total, expected.total, rtol=1e-6, atol=0)


def test_embeddings_of_different_shapes_raise() -> None:
    with pytest.raises(ValueError, match=r"both be \(b, d\).*\(3, 4\) and \(5, 4\)"):
        SREM().from_embeddings(torch.zeros(3, 4), torch.zeros(5, 4), 1.0)
