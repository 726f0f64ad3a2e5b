"""GSC: geometrical structure consistency. A pair is trusted as far as two kinds of structure agree with it.

    L = mean_i y_i (CE_i i2t + CE_i t2i) / 2 + structure_weight mean_i y_i l_i

l_i is the structure loss of `objectives/structure.py`, on the cosines within each modality. After each epoch

    p_i <- momentum P_i + (1 - momentum) p_i,   P_i the mean of P_ii over both directions
    s_i <- momentum P(upper component | c_i) + (1 - momentum) s_i,   a mixture of two Gaussians over the consistencies c
    y_i = min(p_i, s_i)

In the warm-up all labels are 1 and the structure loss is left out; p and s are estimated from its epochs.
Reference: Zhao et al., Mitigating Noisy Correspondence by Geometrical Structure Consistency Learning, CVPR 2024.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import (
    Similarity,
    candidate_mask,
    cosines_within,
    match_probability,
    similarity_of,
)
from sremkit.methods.common.mixtures import lower_gaussian_probability, rescaled
from sremkit.objectives import Loss
from sremkit.objectives.contrastive import row_cross_entropy
from sremkit.objectives.structure import structure_consistency, structure_loss
from sremkit.objectives.terms import PairReport

KEPT = ("probability", "consistency", "probability_mean", "structure_mean")  # of each pair, in checkpoints


@METHODS.register("gsc")
@dataclass(kw_only=True, eq=False)
class GSC(Method):
    """GSC: weights a pair by its probability and by how its image and its text lie among the others.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        temperature: divides the similarity in the cross-entropy; 0.07 as published for sigmoids.
        structure_weight: of the structure loss; published: 0.01, on MS-COCO 1.
        structure_temperature: of the structure loss.
        momentum: weight of the last epoch in the label.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    selects_pairs: ClassVar[bool] = True
    uncompiled: ClassVar[tuple[str, ...]] = ("_similarities_within",)
    supports_processes: ClassVar[bool] = False

    similarity: Similarity = "sigmoid"
    temperature: float = 0.07
    structure_weight: float = 0.01
    structure_temperature: float = 1.0
    momentum: float = 0.7
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"momentum must lie between 0 and 1, got {self.momentum}")
        self.probability = torch.zeros(0)  # P_i and
        self.consistency = torch.zeros(0)  # c_i of the last batch with pair i, NaN before
        self.probability_mean = torch.zeros(0)  # p_i
        self.structure_mean = torch.zeros(0)  # s_i

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        return {"similarity": "logit", "temperature": 1.0}  # the published temperature saturates scaled cosines

    def start(self, context: TrainingContext) -> None:
        self.matcher, _ = context.require_scan()
        unknown = torch.full((context.num_pairs,), float("nan"), device=context.device)
        self.probability, self.consistency = unknown, unknown.clone()
        self.probability_mean, self.structure_mean = torch.ones_like(unknown), torch.ones_like(unknown)

    @property
    def label(self) -> Tensor:
        """y of every pair, (num_pairs,)."""
        return torch.minimum(self.probability_mean, self.structure_mean)

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity) / self.temperature
        valid = candidate_mask(batch, self.mask_repeated_images)
        images, texts = self._similarities_within(batch)
        label = self.label[batch.pair_id].to(scores)
        if warmup:
            label = torch.ones_like(label)
        consistency = structure_consistency(images.detach(), texts.detach(), label)
        self.probability[batch.pair_id] = match_probability(scores, valid).to(self.probability)
        self.consistency[batch.pair_id] = consistency.to(self.consistency)
        i2t, t2i = (row_cross_entropy(f, valid=valid) for f in (scores, scores.T))
        contrast = (label * ((i2t + t2i) / 2)).mean()
        if warmup:
            return Loss(total=contrast, parts={"contrast": contrast.detach()})
        structure = structure_loss(images, texts, label, temperature=self.structure_temperature, valid=valid)
        structure = (label * structure).mean()
        return Loss(
            total=contrast + self.structure_weight * structure,
            parts={"contrast": contrast.detach(), "structure": structure.detach()},
            report=PairReport(clean=label > 0.5, weight=label.float()),
        )

    def _similarities_within(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cosines of the batch's images with each other, and of its texts."""
        images, texts = self.matcher.encode(batch)
        return cosines_within(images), cosines_within(texts)

    def graph_key(self) -> Hashable:
        return ()  # labels are updated in place

    def finish_epoch(self) -> None:
        """Update the labels with what the epoch's batches have shown."""
        known = ~self.probability.isnan()
        if int(known.sum()) < 2:
            return
        upper = 1 - lower_gaussian_probability(rescaled(self.consistency[known].cpu()))
        for mean, new in (
            (self.probability_mean, self.probability[known]),
            (self.structure_mean, upper.to(self.structure_mean)),
        ):
            mean[known] = self.momentum * new + (1 - self.momentum) * mean[known]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in KEPT}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in KEPT:
            setattr(self, name, state[name].to(getattr(self, name)))
