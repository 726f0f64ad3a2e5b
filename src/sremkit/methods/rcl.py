"""RCL as a method: complementary contrastive learning from the first epoch to the last."""

from __future__ import annotations

from typing import Literal

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Scorer
from sremkit.objectives import Loss
from sremkit.objectives.candidates import distinct_images
from sremkit.objectives.rcl import Form, rcl


@METHODS.register("rcl")
class RCL(Method):
    """RCL: learns from negative matches alone, so that no wrong pair is ever believed.

    Args:
        similarity: "sigmoid" as published, or "logit" for models whose logits are scaled cosines.
        temperature: divides the similarity; 0.05 as published for sigmoid scores.
        form: log, tan, abs, exp or gce.
        power: of the gce form.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    def __init__(
        self,
        *,
        similarity: Literal["sigmoid", "logit"] = "sigmoid",
        temperature: float = 0.05,
        form: Form = "log",
        power: float = 0.5,
        mask_repeated_images: bool = True,
    ) -> None:
        self.similarity = similarity
        self.temperature = temperature
        self.form: Form = form
        self.power = power
        self.mask_repeated_images = mask_repeated_images

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        logits = matcher(batch)
        scores = logits.float().sigmoid() if self.similarity == "sigmoid" else logits
        valid = distinct_images(batch.image_id) if self.mask_repeated_images else None
        i2t, t2i = (
            rcl(s, temperature=self.temperature, form=self.form, power=self.power, valid=v)
            for s, v in ((scores, valid), (scores.T, None if valid is None else valid.T))
        )
        return Loss(total=i2t + t2i, parts={"i2t": i2t.detach(), "t2i": t2i.detach()})
