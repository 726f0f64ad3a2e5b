"""Pooling of regions or words to one vector: SGRAF's attention to the mean, and VSE∞'s generalised pooling.

Attention pooling (`RegionAttention`, `WordAttention`):

    weight_k = softmax_k( u · (L_k ⊙ G) + b ),   v_glo = ℓ2( sum_k weight_k v_k )

with L_k computed from the vector k and G from the mean of all, each by linear layer, tanh and dropout. For
images a batch normalisation precedes each tanh; that of L_k has the region's index as its channel.

Generalised pooling (`GeneralizedPooling`) learns the weight of the k-th largest value of each channel:

    pooled_d = sum_k weight_k · (k-th largest of channel d)

For an item of length l a small bidirectional GRU reads sine and cosine codes of the positions 1 ... l, and a
softmax at temperature 0.1 gives one weight a rank. Mean, max and top-k pooling are special cases.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sremkit import ops
from sremkit.errors import DataError
from sremkit.models.layers.encoders import xavier_linear
from sremkit.models.layers.masking import MaskedBatchNorm, masked_mean
from sremkit.ops.functional import Dropout, full_precision, l2_normalize, masked_softmax
from sremkit.ops.gru import run_gru


class RegionAttention(nn.Module):
    """The global vector of an image; built for at most `num_regions` regions."""

    def __init__(self, embed_size: int, num_regions: int, *, dropout: float) -> None:
        super().__init__()
        self.num_regions = num_regions
        self.local = xavier_linear(embed_size, embed_size)
        self.local_norm = MaskedBatchNorm(num_regions)
        self.mean = xavier_linear(embed_size, embed_size)
        self.mean_norm = MaskedBatchNorm(embed_size)
        self.weight = xavier_linear(embed_size, 1)
        self.dropout = Dropout(dropout)

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        if regions.shape[1] > self.num_regions:
            raise DataError(
                f"an image has {regions.shape[1]} regions, but the model is built for {self.num_regions}; "
                f"build it with num_regions={regions.shape[1]} or more"
            )
        mean = masked_mean(regions, mask.unsqueeze(-1), dim=1)  # (b, d)
        channels = self.local(regions).transpose(1, 2)  # (b, d, r)
        normed = self.local_norm(channels, mask.unsqueeze(1)).transpose(1, 2)  # (b, r, d)
        local_part = self.dropout(torch.tanh(normed))
        mean_part = self.dropout(torch.tanh(self.mean_norm(self.mean(mean))))  # (b, d)
        return attention_pool(regions, mask, self.weight(local_part * mean_part.unsqueeze(1)))


class WordAttention(nn.Module):
    """The global vector of a text."""

    def __init__(self, embed_size: int, *, dropout: float) -> None:
        super().__init__()
        self.local = xavier_linear(embed_size, embed_size)
        self.mean = xavier_linear(embed_size, embed_size)
        self.weight = xavier_linear(embed_size, 1)
        self.dropout = Dropout(dropout)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        mean = masked_mean(words, mask.unsqueeze(-1), dim=1)  # (b, d)
        local_part = self.dropout(torch.tanh(self.local(words)))  # (b, w, d)
        mean_part = self.dropout(torch.tanh(self.mean(mean)))  # (b, d)
        return attention_pool(words, mask, self.weight(local_part * mean_part.unsqueeze(1)))


def attention_pool(x: Tensor, mask: Tensor, scores: Tensor) -> Tensor:
    """Unit vector along the sum of `x` (b, l, d) weighted by a softmax of `scores` (b, l, 1): (b, d)."""
    weights = masked_softmax(scores, mask.unsqueeze(-1), dim=1)
    return l2_normalize((weights * full_precision(x)).sum(dim=1))


class GeneralizedPooling(nn.Module):
    """Weighted sum of the sorted values of each channel, with weights learned for each length."""

    temperature = 0.1

    def __init__(self, position_dim: int = 32) -> None:
        super().__init__()
        self.position_dim = position_dim
        self.gru = nn.GRU(position_dim, position_dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(position_dim, 1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pool `x` (b, l, d) over the elements where `mask` (b, l) is True: (b, d)."""
        x = full_precision(x)
        lengths = mask.sum(dim=1)
        in_order = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)  # (b, l)
        lowest = torch.finfo(x.dtype).min
        ranked = x.masked_fill(~mask.unsqueeze(-1), lowest).sort(dim=1, descending=True).values
        ranked = ranked.masked_fill(~in_order.unsqueeze(-1), 0.0)
        weights = self.weights(lengths, x.shape[1], dtype=x.dtype)  # (b, l)
        return (weights.unsqueeze(-1) * ranked).sum(dim=1)

    def weights(self, lengths: Tensor, width: int, *, dtype: torch.dtype) -> Tensor:
        """Weight of each rank for items of these lengths: (b, width), rows sum to 1."""
        codes = position_codes(width, self.position_dim, device=lengths.device, dtype=dtype)
        # Without kernels the GRU synchronises with the device anyway.
        some, which = distinct_lengths(lengths, width, may_sync=not ops.uses_triton(codes))
        codes = codes.expand(len(some), -1, -1)  # (some, width, position_dim)
        present = torch.arange(width, device=lengths.device) < some.unsqueeze(1)
        hidden, _ = run_gru(self.gru, codes, present)
        scores = full_precision(self.score(hidden)).squeeze(-1) / self.temperature
        return masked_softmax(scores, present, dim=1).index_select(0, which)


def distinct_lengths(lengths: Tensor, width: int, *, may_sync: bool) -> tuple[Tensor, Tensor]:
    """Lengths that include all of these, from 0 to `width`, and the index of each: `some[which]` is `lengths`.

    Args:
        may_sync: each only once, for which the host waits for the device; else all possible lengths, or all given.
    """
    if may_sync:
        return lengths.unique(return_inverse=True)
    if len(lengths) <= width:
        return lengths, torch.arange(len(lengths), device=lengths.device)
    return torch.arange(width + 1, device=lengths.device), lengths


def position_codes(length: int, dim: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Sines (even columns) and cosines (odd) of the positions at falling frequencies: (length, dim)."""
    position = torch.arange(length, device=device, dtype=dtype).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, dim, 2, device=device, dtype=dtype) * (-math.log(10000.0) / dim))
    codes = torch.zeros(length, dim, device=device, dtype=dtype)
    codes[:, 0::2] = (position * frequency).sin()
    codes[:, 1::2] = (position * frequency).cos()[:, : dim // 2]
    return codes
