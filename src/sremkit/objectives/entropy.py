"""Entropy of a query's in-batch classification, scaled to [0, 1].

    e_i = -sum_j P_ij log P_ij / log B,   P = softmax of the row                             [eq:entropy]

0 when one candidate takes all, 1 when all B are equally likely.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.objectives.candidates import as_logits, count_valid, keep_valid


def normalized_entropy(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Entropy (b,) of each row in [0, 1]; 0 for a row with a single candidate, whose log B would be 0."""
    logits = as_logits(logits, square=False)
    log_p = keep_valid(logits, valid).log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    return scaled_entropy(entropy, count_valid(logits, valid))  # [eq:entropy]


def scaled_entropy(entropy: Tensor, candidates: Tensor) -> Tensor:
    """Entropy over its maximum, the logarithm of the number of candidates."""
    # One candidate: any divisor but log 1 = 0 will do, the entropy above it is 0.
    log_candidates = torch.where(candidates > 1, candidates, 2.0).log()
    return (entropy / log_candidates).clamp(0.0, 1.0)
