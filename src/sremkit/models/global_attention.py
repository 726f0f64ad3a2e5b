"""One vector for an image or a text: its parts weighted by how they go with their mean.

    weight_k = softmax_k( u · (L_k ⊙ G) + b ),   v_glo = ℓ2( sum_k weight_k v_k )

with L_k made from the part and G from the mean of the parts, each by linear layer, tanh and dropout. For
images a batch normalisation stands before each tanh; that of L_k has the region's index as its channel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sremkit.errors import DataError
from sremkit.models.dropout import Dropout
from sremkit.models.encoders import xavier_linear
from sremkit.models.masking import MaskedBatchNorm, masked_mean, masked_softmax
from sremkit.models.similarity import full_precision, unit


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
    return unit((weights * full_precision(x)).sum(dim=1))
