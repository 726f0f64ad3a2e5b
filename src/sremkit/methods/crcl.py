"""CRCL: active complementary learning with labels that refine themselves.

The loss of a pair is that of `objectives/rcl.py`, both directions. Its label follows the model:

    y_i <- label_decay y_i + (1 - label_decay) p_i,   p_i the mean of P_ii over both directions;   y_i < min_label
    becomes 0

In the warm-up every label is 1, and p_i is kept as the first label. Then the network is initialised again `restarts`
times, each after `restart_epochs` epochs, and the labels are kept: what one network has learned by heart, the next one
has not. A new network does not change the labels in its first `frozen_epochs`.
Reference: Qin et al., Cross-modal Active Complementary Learning with Self-refining Correspondence, NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import Similarity, candidate_mask, match_probability, similarity_of
from sremkit.objectives import Loss
from sremkit.objectives.rcl import active_complementary
from sremkit.objectives.terms import PairReport


@METHODS.register("crcl")
@dataclass(kw_only=True, eq=False)
class CRCL(Method):
    """CRCL: active complementary loss; labels follow the model, which is initialised again a few times.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        temperature: divides the similarity; 0.05 as published for sigmoids and cosines.
        complementary_weight: of the negatives, relative to the cross-entropy.
        label_decay: of the moving average over a pair's probabilities.
        min_label: smaller labels become 0; such a pair counts as noisy.
        restarts: how often the network is initialised again; published: 3.
        restart_epochs: epochs after the warm-up, or after an initialisation, until the next one; published: 5 to 7.
        frozen_epochs: epochs after an initialisation in which labels stay.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    selects_pairs: ClassVar[bool] = True

    similarity: Similarity = "sigmoid"
    temperature: float = 0.05
    complementary_weight: float = 5.0
    label_decay: float = 0.8
    min_label: float = 0.1
    restarts: int = 0
    restart_epochs: int = 5
    frozen_epochs: int = 2
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if not 0 <= self.label_decay <= 1:
            raise ValueError(f"label_decay must lie between 0 and 1, got {self.label_decay}")
        if self.restarts < 0 or self.restart_epochs < 1 or self.frozen_epochs < 0:
            raise ValueError("restarts and frozen_epochs must be at least 0, and restart_epochs at least 1")
        self.label = torch.zeros(0)  # y_i
        self.epochs = 0  # begun after the warm-up
        self.learns_labels = False  # in this epoch
        self.restart: Callable[[], None] | None = None

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        return {"similarity": "logit", "temperature": 1.0}  # the published temperature saturates scaled cosines

    def start(self, context: TrainingContext) -> None:
        self.label = torch.ones(context.num_pairs, device=context.device)
        self.epochs = 0
        self.restart = context.restart

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Initialise the network again, if it is time."""
        if warmup:
            return
        stage, within = divmod(self.epochs, self.restart_epochs)
        if within == 0 and 0 < stage <= self.restarts:
            if self.restart is None:
                raise ValueError("CRCL with restarts initialises the network again; start it with `restart`")
            self.restart()
        self.epochs += 1
        self.learns_labels = self._is_old_enough()

    def graph_key(self) -> Hashable:
        return self.learns_labels

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity) / self.temperature
        valid = candidate_mask(batch, self.mask_repeated_images)
        probability = match_probability(scores, valid).to(self.label)
        label = self._updated_labels(probability, batch.pair_id, warmup=warmup)
        i2t, t2i = (
            active_complementary(s, label.to(s), complementary_weight=self.complementary_weight, valid=valid).mean()
            for s in (scores, scores.T)
        )
        return Loss(
            total=i2t + t2i,
            parts={"i2t": i2t.detach(), "t2i": t2i.detach()},
            report=None if warmup else PairReport(clean=label > 0, weight=label),
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {"label": self.label, "epochs": torch.tensor(self.epochs)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.label = state["label"].to(self.label)
        self.epochs = int(state["epochs"])
        self.learns_labels = self._is_old_enough()

    def _updated_labels(self, probability: Tensor, pair_id: Tensor, *, warmup: bool) -> Tensor:
        """The labels (b,) of this batch, after the memory was updated with the probabilities."""
        if warmup:
            self.label[pair_id] = probability  # the first labels, for the time after the warm-up
            return torch.ones_like(probability)
        label = self.label[pair_id]
        if self.learns_labels:
            label = self.label_decay * label + (1 - self.label_decay) * probability
        label = torch.where(label < self.min_label, 0.0, label)
        self.label[pair_id] = label
        return label

    def _is_old_enough(self) -> bool:
        """Whether the network is old enough to change labels."""
        begun = self.epochs - 1
        stage = min(begun // self.restart_epochs, self.restarts)
        return stage == 0 or begun - stage * self.restart_epochs >= self.frozen_epochs
