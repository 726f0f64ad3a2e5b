"""Watching a training with the truth in hand: how many selected pairs and positive gradients are wrong."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.evaluation.gradients import NoisyGradients
from sremkit.objectives import Loss, Terms


class NoiseWatch:
    """Follows one epoch after another; knows which pairs are wrong, and tells nobody in the training.

    Args:
        true_image: (num_pairs,) the image that each training text belongs to. A pair is wrong where the text
            comes with another one, whether it was given so or a method thought so.
    """

    def __init__(self, true_image: np.ndarray) -> None:
        self.true_image = torch.as_tensor(true_image)
        self._start()

    def _start(self) -> None:
        self.gradients = NoisyGradients()
        self.selected = torch.zeros(2)  # wrong, all; both directions
        self.pull = torch.zeros(2, dtype=torch.float64)  # at wrong pairs, at all

    def step(self, batch: Batch, terms: Loss, pull: Tensor | None = None) -> None:
        """Enter one batch.

        Args:
            pull: (b,) how strongly the loss pulled each given pair together, whatever the method.
        """
        self.true_image = self.true_image.to(batch.pair_id.device)
        wrong = self.true_image[batch.pair_id] != batch.image_id
        if pull is not None:
            pull = pull.double()
            self.pull = self.pull.to(pull.device) + torch.stack([(pull * wrong).sum(), pull.sum()])
        if not isinstance(terms, Terms):
            return
        self.gradients.update(terms, wrong)
        clean = torch.stack([terms.clean_i2t, terms.clean_t2i])  # (2, b)
        counts = torch.stack([(clean & wrong).sum(), clean.sum()]).float()
        self.selected = self.selected.to(counts.device) + counts

    def finish_epoch(self) -> dict[str, float]:
        """The epoch's shares: of the pull for every method, the others for methods that select pairs."""
        wrong, selected = self.selected.tolist()
        noisy_pull, pull = self.pull.tolist()
        metrics = {}
        if pull > 0:
            metrics["noisy_pull_ratio"] = noisy_pull / pull
        if selected > 0:
            metrics |= {"selected_wrong": wrong / selected, "noisy_gradient_ratio": self.gradients.ratio()}
        self._start()
        return metrics

    def state(self) -> dict[str, float]:
        wrong, selected = self.selected.tolist()
        noisy_pull, pull = self.pull.tolist()
        return {
            "selected_wrong": wrong,
            "selected": selected,
            "noisy_pull": noisy_pull,
            "pull": pull,
            **self.gradients.state(),
        }

    def load_state(self, state: dict[str, float]) -> None:
        self._start()
        self.selected = torch.tensor([state["selected_wrong"], state["selected"]])
        self.pull = torch.tensor([state["noisy_pull"], state["pull"]], dtype=torch.float64)
        self.gradients.load_state(state)
