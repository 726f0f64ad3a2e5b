"""Triplet losses that treat every given pair as correct: the baseline of the methods that rank with margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method
from sremkit.objectives import Loss
from sremkit.objectives.logits import distinct_images
from sremkit.objectives.triplet import Reduction, triplet

Similarity = Literal["sigmoid", "logit"]


def similarity_of(logits: Tensor, similarity: Similarity) -> Tensor:
    """Scores that the margin refers to: sigmoids, or the logits themselves; in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.sigmoid() if similarity == "sigmoid" else logits


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

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity)
        valid = distinct_images(batch.image_id) if self.mask_repeated_images else None
        reduction: Reduction = "mean" if warmup else self.reduction
        hinges = triplet(scores, margin=self.margin, reduction=reduction, valid=valid)
        return Loss(total=hinges.sum(), parts={"hinge": hinges.detach().mean()})


@METHODS.register("hinge-mean")
class HingeMean(Hinge):
    """Plain training: a margin to every negative of the batch; no defence against wrong pairs."""

    has_warmup: ClassVar[bool] = False
    reduction: ClassVar[Reduction] = "mean"
