"""RCL: complementary contrastive learning, from the first epoch to the last."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method
from sremkit.methods.common.batch_scores import Similarity, candidate_mask, similarity_of
from sremkit.objectives import Loss
from sremkit.objectives.rcl import Form, rcl


@METHODS.register("rcl")
@dataclass(kw_only=True, eq=False)
class RCL(Method):
    """RCL: learns from negatives alone, so that no wrong pair is fitted.

    Args:
        similarity: "sigmoid" as published, or "logit" for models whose logits are scaled cosines.
        temperature: divides the similarity; 0.05 as published for sigmoid scores.
        form: log, tan, abs, exp or gce.
        power: of the gce form.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    has_warmup: ClassVar[bool] = False

    similarity: Similarity = "sigmoid"
    temperature: float = 0.05
    form: Form = "log"
    power: float = 0.5
    mask_repeated_images: bool = True

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        return {"similarity": "logit", "temperature": 0.5}  # the published temperature saturates cosines

    def graph_key(self) -> Hashable:
        return ()

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity)
        valid = candidate_mask(batch, self.mask_repeated_images)
        i2t, t2i = (
            rcl(s, temperature=self.temperature, form=self.form, power=self.power, valid=valid)
            for s in (scores, scores.T)
        )
        return Loss(total=i2t + t2i, parts={"i2t": i2t.detach(), "t2i": t2i.detach()})
