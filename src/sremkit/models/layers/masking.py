"""Masked inputs: trimming, means and batch statistics over present elements only.

On a CPU trailing columns of padding are cut off before anything is computed. So padding a batch further
changes no bit of the result: the same tensors are summed in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.errors import DataError
from sremkit.models.encoding import trimmed_width
from sremkit.ops.functional import full_precision


def regions_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Region features (b, r, d), zero where absent, and their mask (b, r); a single vector is one region."""
    if batch.images is None:
        raise DataError("the batch holds no image features, which this backbone needs; give the data image features")
    images = batch.images.unsqueeze(1) if batch.images.ndim == 2 else batch.images
    mask = batch.region_mask
    if mask is None:
        return images, torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
    images, mask = _without_trailing_padding(images, mask)
    return images.masked_fill(~mask.unsqueeze(-1), 0.0), mask


def pixels_of(batch: Batch, backbone: str) -> Tensor:
    """Prepared pixels (b, 3, h, w)."""
    if batch.images is None or batch.images.ndim != 4:
        given = "none" if batch.images is None else f"shape {tuple(batch.images.shape)}"
        raise DataError(f"'{backbone}' takes prepared pixels of shape (b, 3, height, width), got {given}")
    return batch.images


def words_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Word indices (b, w), 0 where absent, and their mask (b, w); words are at the front of a row."""
    if batch.words is None:
        raise DataError("the batch holds no words, which this backbone needs; give the data a vocabulary")
    mask = batch.words != 0 if batch.word_mask is None else batch.word_mask
    words, mask = _without_trailing_padding(batch.words, mask)
    return words.masked_fill(~mask, 0), mask


def _without_trailing_padding(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """On a CPU. On other devices the columns stay, because the host would have to wait for their number."""
    if mask.device.type != "cpu":
        return x, mask
    width = trimmed_width(mask)
    return x[:, :width].contiguous(), mask[:, :width].contiguous()


def known_widths(batch: Batch) -> tuple[int, int] | None:
    """The maximum number of regions and of words of an item; None unless the host knows the batch's number of words."""
    if batch.images is None or batch.words is None or batch.max_total_words is None:
        return None
    return batch.images.shape[1] if batch.images.ndim == 3 else 1, batch.words.shape[1]


def masked_mean(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Mean over present elements along `dim`; 0 where there are none. `mask` broadcasts to `x`."""
    count = mask.sum(dim=dim).clamp_min(1)
    return x.masked_fill(~mask, 0.0).sum(dim=dim) / count


class MaskedBatchNorm(nn.Module):
    """Batch normalisation of the last axis, with statistics over the present elements.

    With all elements present it is `nn.BatchNorm1d`: biased variance to normalise, unbiased for the running
    estimate. An input with fewer channels has the first ones; a channel without elements keeps its estimates.
    """

    #: Sums over the processes that share a batch; distributed training sets it.
    all_reduce: Callable[[Tensor], Tensor] = staticmethod(lambda sums: sums)
    momentum, eps = 0.1, 1e-5
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("running_mean", torch.zeros(num_channels))
        self.register_buffer("running_var", torch.ones(num_channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalise `x` (..., c); `mask` broadcasts to it, and without one all elements are present."""
        x = full_precision(x)
        if mask is None:
            mask = torch.ones(1, dtype=torch.bool, device=x.device)
        c = x.shape[-1]
        mean, var = self.running_mean[:c], self.running_var[:c]
        if self.training:
            mean, var = self._batch_statistics(x, mask)
        return (x - mean) * (var + self.eps).rsqrt() * self.weight[:c] + self.bias[:c]

    def _batch_statistics(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        present = mask.view((1,) * (x.ndim - mask.ndim) + mask.shape)
        # An axis that the mask broadcasts over counts as often as `x` has it.
        times = math.prod(x.shape[:-1]) // max(1, math.prod(present.shape[:-1]))
        count = self.all_reduce(_sum_of_channels(present).expand(x.shape[-1]) * times).clamp_min(1)  # (c,)
        mean = self.all_reduce(_sum_of_channels(x.masked_fill(~present, 0.0))) / count
        var = self.all_reduce(_sum_of_channels((x - mean).masked_fill(~present, 0.0).square())) / count
        with torch.no_grad():
            known = count > 1  # a single value has no variance
            unbiased = var * count / (count - 1).clamp_min(1)
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                own = running[: len(new)]
                own.copy_(torch.where(known, own + self.momentum * (new - own), own))
        return mean, var


def _sum_of_channels(x: Tensor) -> Tensor:
    """Sums (c,) of `x` (..., c), over one axis after the other.

    Few channels make few sums, which cannot keep a GPU busy; sums over one axis at a time are many.
    """
    while x.ndim > 1:
        x = x.sum(dim=-2)
    return x
