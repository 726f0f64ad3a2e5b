"""What is absent has no influence: trimming, softmax, means and batch statistics over present items only.

Trailing columns that nobody fills are cut off before anything is computed. So padding a batch further
changes no bit of the result: the very same numbers, laid out alike, are added in the very same order. On any
other device they stay, because to find them the host would have to wait in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.errors import DataError
from sremkit.models.matcher import trimmed_width
from sremkit.models.similarity import full_precision


def regions_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Region features (b, r, d), zero where absent, and their mask (b, r); a single vector is one region."""
    if batch.images is None:
        raise DataError(
            "the batch holds no image features, which this backbone needs; give the data image features"
        )
    images = batch.images.unsqueeze(1) if batch.images.ndim == 2 else batch.images
    mask = batch.region_mask
    if mask is None:
        return images, torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
    if mask.device.type == "cpu":
        width = trimmed_width(mask)
        images, mask = images[:, :width].contiguous(), mask[:, :width].contiguous()
    return images.masked_fill(~mask.unsqueeze(-1), 0.0), mask


def words_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Word numbers (b, w), 0 where absent, and their mask (b, w); words stand at the front of a row."""
    if batch.words is None:
        raise DataError("the batch holds no words, which this backbone needs; give the data a vocabulary")
    mask = batch.words != 0 if batch.word_mask is None else batch.word_mask
    words = batch.words
    if mask.device.type == "cpu":
        width = trimmed_width(mask)
        words, mask = words[:, :width].contiguous(), mask[:, :width].contiguous()
    return words.masked_fill(~mask, 0), mask


def known_widths(batch: Batch) -> tuple[int, int] | None:
    """Regions of an image and words of a text at most; None unless the host knows how many words there are in all."""
    if batch.images is None or batch.words is None or batch.most_words is None:
        return None
    return batch.images.shape[1] if batch.images.ndim == 3 else 1, batch.words.shape[1]


def masked_softmax(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Softmax over present items; absent ones get exactly 0, also where nothing is present."""
    # A finite fill: minus infinity would turn a row without any present item into NaN.
    x = full_precision(x)
    filled = x.masked_fill(~mask, torch.finfo(x.dtype).min)
    return filled.softmax(dim=dim).masked_fill(~mask, 0.0)


def masked_mean(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Mean over present items along `dim`; 0 where there are none. `mask` broadcasts to `x`."""
    count = mask.sum(dim=dim).clamp_min(1)
    return x.masked_fill(~mask, 0.0).sum(dim=dim) / count


class MaskedBatchNorm(nn.Module):
    """Batch normalisation of the last axis, with statistics over what is present.

    With everything present it is `nn.BatchNorm1d`: biased variance to normalise, unbiased for the running
    estimate. Fewer channels than built for are the first ones; a channel nobody has keeps its estimates.
    """

    #: Adds sums up over the processes that share a batch; training in several processes sets it.
    add_up: Callable[[Tensor], Tensor] = staticmethod(lambda sums: sums)
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_channels: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("running_mean", torch.zeros(num_channels))
        self.register_buffer("running_var", torch.ones(num_channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalise `x` (..., c); `mask` broadcasts to it, and without one everything is present."""
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
        # What the mask does not tell apart is there as often as `x` has it.
        times = math.prod(x.shape[:-1]) // max(1, math.prod(present.shape[:-1]))
        count = self.add_up(_sum_of_channels(present).expand(x.shape[-1]) * times).clamp_min(1)  # (c,)
        mean = self.add_up(_sum_of_channels(x.masked_fill(~present, 0.0))) / count
        var = self.add_up(_sum_of_channels((x - mean).masked_fill(~present, 0.0).square())) / count
        with torch.no_grad():
            known = count > 1  # a single value has no spread
            unbiased = var * count / (count - 1).clamp_min(1)
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                own = running[: len(new)]
                own.copy_(torch.where(known, own + self.momentum * (new - own), own))
        return mean, var


def _sum_of_channels(x: Tensor) -> Tensor:
    """Sums (c,) of `x` (..., c), over one axis after the other.

    Few channels make few sums, which cannot keep a GPU busy; the sums over one axis are many.
    """
    while x.ndim > 1:
        x = x.sum(dim=-2)
    return x
