"""Negative impact of a pair, as in NPC: does a step on the batch harm trusted pairs that are like it?

    r_i = (before_i / after_i for the nearest image + the same for the nearest text) / 2
    w_i = 1 where r_i >= 1,  tanh(r_i) elsewhere                                                    [eq:negative-impact]

before and after are the losses of two trusted pairs, one with the nearest image and one with the nearest text, before
and after the step. r_i < 1 means that the step made them worse.
Reference: Zhang et al., Negative Pre-aware for Noisy Cross-modal Matching, AAAI 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor


def negative_impact_weight(before: Tensor, after: Tensor) -> Tensor:
    """w (b,) in [0, 1].

    Args:
        before: (2, b) losses of the trusted pairs by image and by text.
        after: (2, b), likewise after the step.
    """
    if before.shape != after.shape or before.ndim != 2:
        raise ValueError(f"before and after must both be (2, b); got {tuple(before.shape)} and {tuple(after.shape)}")
    tiny = torch.finfo(before.dtype).tiny  # a loss of exactly 0 stays one: 0 / 0 counts as no change
    ratio = ((before + tiny) / (after + tiny)).mean(dim=0)
    return torch.where(ratio >= 1, torch.ones_like(ratio), ratio.tanh())  # [eq:negative-impact]
