"""Whether SREM would pull the pairs that it selects nearly as strongly as it pushes their hard negatives.

A hinge of SREM pulls its pair with the weight w and pushes the hard negative with 1. The weights are small while rows
are flat, and then pushing wins: all scores fall together, rows become flatter still, and within a few updates
everything is forgotten. So a warm-up has to go on until

    mean weight of the selected pairs >= 2/3

Measured with SAF on Flickr8k (docs/lab.md): up to 0.53 training mostly collapses, from 0.57 on it recovers, from 0.65
on it hardly suffers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sremkit.objectives import Terms

ENOUGH = 2 / 3


class Pulling:
    """Averages the weights of selected pairs over an epoch. What it adds up stays on the device until then."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The warm-up is over."""
        self.weight = math.nan  # mean of the last whole epoch; nan where nobody was selected in it
        self._tally = torch.zeros(2, dtype=torch.float64)  # weights, pairs
        self._has_seen = False

    @torch.no_grad()
    def see(self, terms: Terms) -> None:
        """Add the pairs of one batch that are selected, each with the weight that would pull it."""
        if self._tally.device != terms.weight_i2t.device:
            self._tally = self._tally.to(terms.weight_i2t.device)
        # In place and without a look at the numbers, so that a step can be recorded and replayed.
        for weight, clean in ((terms.weight_i2t, terms.clean_t2i), (terms.weight_t2i, terms.clean_i2t)):
            self._tally[0].add_(weight.masked_fill(~clean, 0.0).sum())
            self._tally[1].add_(clean.sum())
        self._has_seen = True

    def finish_epoch(self) -> None:
        """Turn the sums of the epoch into its mean."""
        if not self._has_seen:
            return
        weights, pairs = self._tally.tolist()
        self.weight = weights / pairs if pairs else math.nan
        self._tally.zero_()

    def is_enough(self) -> bool:
        """Whether selected pairs were pulled enough in the last epoch; not where nobody was selected."""
        return self.weight >= ENOUGH

    def in_words(self) -> str:
        """How strongly they were pulled in the last epoch."""
        if math.isnan(self.weight):
            return "no pair was selected"
        return f"selected pairs would be pulled with {self.weight:.2f} of what pushes their hard negatives"

    def state_dict(self) -> dict[str, Tensor]:
        """Empty before and after the warm-up."""
        if not self._has_seen:
            return {}
        return {
            "pulling/tally": self._tally,
            "pulling/weight": torch.tensor(self.weight, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state; one without these entries comes from outside a warm-up."""
        self.forget()
        if "pulling/tally" in state:
            self._tally = state["pulling/tally"].clone()
            self.weight = float(state["pulling/weight"])
            self._has_seen = True
