"""A moving average of the weights: steadier than the weights themselves, above all where labels are noisy.

    average <- d average + (1 - d) weights,  d = min(decay, (1 + step) / (10 + step))

so that the first steps, which are far from anywhere, are soon forgotten.
"""

from __future__ import annotations

import copy

import torch

from sremkit.errors import UserError
from sremkit.models.matcher import Matcher


class AveragedWeights:
    """A second model whose weights follow those of the trained one.

    Args:
        decay: how much of the average stays at each step.
    """

    def __init__(self, matcher: Matcher, decay: float) -> None:
        if not 0 < decay < 1:
            raise UserError(f"training.average is a decay between 0 and 1, such as 0.999, got {decay}")
        self.decay = decay
        self.matcher = copy.deepcopy(matcher).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, matcher: Matcher, step: int) -> None:
        """Follow the weights after update number `step`, counted from 1; running estimates are taken over."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.matcher.parameters()), list(matcher.parameters()), share)
        for estimate, current in zip(self.matcher.buffers(), matcher.buffers(), strict=True):
            estimate.copy_(current)
