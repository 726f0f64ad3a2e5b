"""The masked batch norm's statistics for every shape of mask, against a loop over the present items."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sremkit.models.layers.masking import MaskedBatchNorm


def statistics(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Mean, biased variance and number of the present items, one channel at a time."""
    rows, present = x.flatten(0, -2), mask.expand_as(x).flatten(0, -2)
    means, variances, counts = [], [], []
    for channel in range(x.shape[-1]):
        items = [rows[k, channel] for k in range(len(rows)) if present[k, channel]]
        mean = sum(items) / len(items)
        means.append(mean)
        variances.append(sum((item - mean) ** 2 for item in items) / len(items))
        counts.append(len(items))
    return torch.stack(means), torch.stack(variances), counts


@pytest.mark.parametrize(
    "shape", [(4, 1, 3), (4, 5, 1), (1, 5, 3), (4, 5, 3), (5, 3), (3,), (1,)], ids=lambda shape: str(shape)
)
def test_a_mask_of_any_shape_counts_what_it_stands_for(shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(len(shape))
    # As SGR's regions come: the channel is the last axis of a transposed view.
    x = torch.randn(4, 3, 5, generator=g, dtype=torch.float64).transpose(1, 2)
    mask = torch.rand(*shape, generator=g) < 0.7
    mask.view(-1, shape[-1])[0] = True  # at least one in each channel
    norm = MaskedBatchNorm(3).double()
    norm.eps = 0.0
    out = norm(x, mask)
    mean, variance, counts = statistics(x, mask)
    torch.testing.assert_close(out, (x - mean) / variance.sqrt(), rtol=1e-10, atol=1e-12)
    unbiased = variance * torch.tensor([n / (n - 1) for n in counts], dtype=torch.float64)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * unbiased, rtol=1e-10, atol=0)
