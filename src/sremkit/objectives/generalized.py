"""Generalised cross-entropy: between believing every given pair and believing only what the model believes.

    l_i = (1 - P_ii^q) / q,   0 < q <= 1;   l_i = -log P_ii at q = 0                            [eq:generalized]

P is the softmax of the row. A pair pulls with P_ii^q times what it pulls with in InfoNCE, so that pairs which the batch
contradicts are felt less; at q = 1 about as little as in the complementary loss, which learns slowly from scratch.
Reference: Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, 2018.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.candidates import as_logits, keep_valid


def generalized_cross_entropy(logits: Tensor, *, power: float, valid: Tensor | None = None) -> Tensor:
    """The loss of each row (b,); pass `logits.T` for the text-to-image direction.

    Args:
        power: q.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    check_power(power)
    logits = as_logits(logits)
    given = torch.arange(len(logits), device=logits.device)
    surprise = F.cross_entropy(keep_valid(logits, valid), given, reduction="none")  # (b,) -log P_ii
    if power == 0:
        return surprise
    return -torch.expm1(-power * surprise) / power  # [eq:generalized]


def check_power(power: float) -> None:
    """Refuse a q that gives no loss."""
    if not 0 <= power <= 1:
        raise ValueError(f"the power of generalised cross-entropy must lie between 0 and 1, got {power}")
