"""Triplet losses that treat every given pair as correct: the baseline of the methods that rank with margins."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method
from sremkit.methods.common.batch_scores import Similarity, candidate_mask, similarity_of
from sremkit.objectives import Loss
from sremkit.objectives.triplet import Reduction, triplet


@METHODS.register("hinge")
@dataclass(kw_only=True, eq=False)
class Hinge(Method):
    """Plain training: a margin to the hardest negative of the batch; no defence against wrong pairs.

    The warm-up uses the mean over all negatives: hardest negatives do not train a randomly initialised model.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        margin: in units of the similarity.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    reduction: ClassVar[Reduction] = "hardest"

    similarity: Similarity = "sigmoid"
    margin: float = 0.2
    mask_repeated_images: bool = True

    def graph_key(self) -> Hashable:
        return ()

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity)
        valid = candidate_mask(batch, self.mask_repeated_images)
        reduction: Reduction = "mean" if warmup else self.reduction
        hinges = triplet(scores, margin=self.margin, reduction=reduction, valid=valid)
        return Loss(total=hinges.sum(), parts={"hinge": hinges.detach().mean()})


@METHODS.register("hinge-mean")
class HingeMean(Hinge):
    """Plain training: a margin to every negative of the batch; no defence against wrong pairs."""

    has_warmup: ClassVar[bool] = False
    reduction: ClassVar[Reduction] = "mean"
