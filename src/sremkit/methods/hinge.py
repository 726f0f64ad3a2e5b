"""Plain hinge training: every given pair is believed. The baseline of the methods that rank with margins."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Scorer
from sremkit.objectives import Loss
from sremkit.objectives.candidates import distinct_images
from sremkit.objectives.triplet import Reduction, triplet

Similarity = Literal["sigmoid", "logit"]


def similarity_of(logits: Tensor, similarity: Similarity) -> Tensor:
    """What the margin is measured in: sigmoid scores, or the logits themselves; in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.sigmoid() if similarity == "sigmoid" else logits


@METHODS.register("hinge")
class Hinge(Method):
    """Plain training: a margin to the hardest negative of the batch; no defence against wrong pairs.

    In the warm-up the mean over all negatives takes the place of the hardest one, which fools an untrained model.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        margin: in units of the similarity.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    reduction: ClassVar[Reduction] = "hardest"

    def __init__(
        self, *, similarity: Similarity = "sigmoid", margin: float = 0.2, mask_repeated_images: bool = True
    ) -> None:
        self.similarity: Similarity = similarity
        self.margin = margin
        self.mask_repeated_images = mask_repeated_images

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(matcher(batch), self.similarity)
        valid = distinct_images(batch.image_id) if self.mask_repeated_images else None
        reduction: Reduction = "mean" if warmup else self.reduction
        hinges = triplet(scores, margin=self.margin, reduction=reduction, valid=valid)
        return Loss(total=hinges.sum(), parts={"hinge": hinges.detach().mean()})


@METHODS.register("hinge-mean")
class HingeMean(Hinge):
    """Plain training: a margin to every negative of the batch; no defence against wrong pairs.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        margin: in units of the similarity.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    reduction: ClassVar[Reduction] = "mean"
