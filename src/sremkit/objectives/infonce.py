"""InfoNCE: each query picks its partner among the batch.

    L = -mean_i log softmax(F)_ii                                                              [eq:infonce]

Pass `logits.T` for the other direction. Every given pair is believed, so wrong pairs are learnt as well.
Reference: van den Oord et al., 2018, https://arxiv.org/abs/1807.03748
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def infonce(logits: Tensor) -> Tensor:
    """Mean cross-entropy of the given pair among all candidates of its row."""
    given = torch.arange(len(logits), device=logits.device)
    return F.cross_entropy(logits, given)  # [eq:infonce]
