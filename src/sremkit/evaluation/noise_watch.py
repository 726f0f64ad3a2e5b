"""Watching a training with the truth in hand: how many selected pairs and positive gradients are wrong."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.evaluation.gradients import NoisyGradients
from sremkit.objectives import Loss, Terms


class NoiseWatch:
    """Follows one epoch after another; knows which pairs are wrong, and tells nobody in the training.

    Args:
        is_noisy: (num_pairs,) the truth about every training pair.
    """

    def __init__(self, is_noisy: np.ndarray) -> None:
        self.is_noisy = torch.as_tensor(is_noisy)
        self._start()

    def _start(self) -> None:
        self.gradients = NoisyGradients()
        self.selected = torch.zeros(2)  # wrong, all; both directions

    def step(self, pair_id: Tensor, terms: Loss) -> None:
        if not isinstance(terms, Terms):
            return
        wrong = self.is_noisy.to(pair_id.device)[pair_id]
        self.gradients.update(terms, wrong)
        clean = torch.stack([terms.clean_i2t, terms.clean_t2i])  # (2, b)
        counts = torch.stack([(clean & wrong).sum(), clean.sum()]).float()
        self.selected = self.selected.to(counts.device) + counts

    def finish_epoch(self) -> dict[str, float]:
        """The epoch's shares; empty for methods that select nothing."""
        wrong, selected = self.selected.tolist()
        metrics = {}
        if selected > 0:
            metrics = {"selected_wrong": wrong / selected, "noisy_gradient_ratio": self.gradients.ratio()}
        self._start()
        return metrics

    def state(self) -> dict[str, float]:
        wrong, selected = self.selected.tolist()
        return {"selected_wrong": wrong, "selected": selected, **self.gradients.state()}

    def load_state(self, state: dict[str, float]) -> None:
        self._start()
        self.selected = torch.tensor([state["selected_wrong"], state["selected"]])
        self.gradients.load_state(state)
