"""Generalised pooling: how much the largest, second largest, ... value of a channel counts, learned.

For an item of length l the positions 1 ... l become sine and cosine codes, a small bidirectional GRU reads
them, and a softmax at temperature 0.1 gives one weight a rank:

    pooled_d = sum_k weight_k · (k-th largest of channel d)

Mean, max and top-k pooling are special cases. The weights depend on the length alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sremkit import kernels
from sremkit.models.gru import run_gru
from sremkit.models.masking import masked_softmax
from sremkit.models.similarity import full_precision


class GeneralizedPooling(nn.Module):
    """Weighted sum of the sorted values of each channel, with weights learned for each length."""

    def __init__(self, *, position_dim: int = 32, hidden_size: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        self.position_dim = position_dim
        self.temperature = temperature
        self.gru = nn.GRU(position_dim, hidden_size, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pool `x` (b, l, d) over what `mask` (b, l) says is present: (b, d)."""
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
        # Without kernels the recurrence waits anyway.
        some, which = few_lengths(lengths, width, may_wait=not kernels.uses_triton(codes))
        codes = codes.expand(len(some), -1, -1)  # (some, width, position_dim)
        present = torch.arange(width, device=lengths.device) < some.unsqueeze(1)
        hidden, _ = run_gru(self.gru, codes, present)
        scores = full_precision(self.score(hidden)).squeeze(-1) / self.temperature
        return masked_softmax(scores, present, dim=1).index_select(0, which)


def few_lengths(lengths: Tensor, width: int, *, may_wait: bool) -> tuple[Tensor, Tensor]:
    """Lengths among which are all of these, 0 to `width`, and which of them each is: `some[which]` is `lengths`.

    Args:
        may_wait: each only once, for which a device has to be waited for; else all that there can be, or all there are.
    """
    if may_wait:
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
