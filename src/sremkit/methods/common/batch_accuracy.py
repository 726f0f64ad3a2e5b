"""In-batch accuracy, the monitor of a warm-up whose method has no weights to look at.

A given pair is ranked first when no other text fits its image better, or no other image its text; each direction counts
for a half. By chance 1 of c candidates is ranked first. The warm-up suffices after an epoch with

    accuracy >= sqrt(chance)

which is half-way from chance to 1 on a logarithmic scale. A model below it has learned nearly nothing, so what a method
concludes about its pairs is arbitrary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sremkit.objectives.logits import diagonal_mask, mask_value


class BatchAccuracy:
    """The share of pairs that are ranked first in their batch, per epoch. Counts stay on the device until its end."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)  # ranked first, expected by chance, queries
        self.reset()

    def reset(self) -> None:
        self.accuracy = math.nan  # of the last epoch
        self.chance = math.nan  # expected accuracy of random scores in the last epoch
        self._sums.zero_()
        self._is_empty = True

    @torch.no_grad()
    def update(self, logits: Tensor, image_ids: Tensor | None) -> None:
        """Add one batch.

        Args:
            logits: (b, b), rows images, columns texts, the given pairs on the diagonal.
            image_ids: (b,) integers; captions of the same image are not each other's negatives.
        """
        given = logits.diagonal()  # (b,)
        excluded = diagonal_mask(logits) if image_ids is None else image_ids[:, None] == image_ids  # (b, b)
        negatives = logits.masked_fill(excluded, mask_value(logits.dtype))  # (b, b)
        # A tie does not count: equal logits rank no pair first.
        first = (given > negatives.amax(dim=1)).sum() + (given > negatives.amax(dim=0)).sum()
        candidates = len(logits) - excluded.sum(dim=1) + 1  # (b,) including the given one, in either direction
        by_chance = 2 * candidates.double().reciprocal().sum()
        if self._sums.device != logits.device:
            self._sums = self._sums.to(logits.device)
        # In place and without synchronisation, so that CUDA graphs can replay it.
        self._sums[0].add_(first)
        self._sums[1].add_(by_chance)
        self._sums[2].add_(2 * len(logits))
        self._is_empty = False

    def finish_epoch(self) -> None:
        first, by_chance, queries = self._sums.tolist()
        if queries == 0:
            return
        self.accuracy = first / queries
        self.chance = by_chance / queries
        self._sums.zero_()

    def is_sufficient(self) -> bool:
        """Whether the warm-up may end, as of the last epoch."""
        return self.accuracy >= math.sqrt(self.chance)

    def message(self) -> str:
        """The accuracy of the last epoch in words."""
        if math.isnan(self.accuracy):
            return "no epoch of it is complete"
        reached = f"in-batch accuracy {_percent(self.accuracy)}"
        if self.is_sufficient():
            return reached
        return f"{reached}, at least {_percent(math.sqrt(self.chance))} needed (chance {_percent(self.chance)})"

    def state_dict(self) -> dict[str, Tensor]:
        """Empty before and after the warm-up."""
        return {} if self._is_empty else {"batch_accuracy/sums": self._sums}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state; one without this entry was saved outside of a warm-up."""
        self.reset()
        if "batch_accuracy/sums" in state:
            self._sums.copy_(state["batch_accuracy/sums"])
            self._is_empty = False


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
