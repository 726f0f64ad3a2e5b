"""SREM as a method: the objective of the same name, warmed up by complementary learning alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Scorer
from sremkit.methods.pulling import ENOUGH, Pulling
from sremkit.methods.warming import Warming
from sremkit.objectives import SREM, Terms
from sremkit.settings import check_options


@METHODS.register("srem")
class SREMMethod(Method):
    """SREM: energy-guided filtration, swapped gradient weighting, biased complementary learning.

    Args:
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
        complementary_warmup: for ablations: without `complementary`, warm up by the complementary loss all the same.
        options: the hyperparameters of `sremkit.SREM`.
    """

    def __init__(
        self, *, mask_repeated_images: bool = True, complementary_warmup: bool = False, **options: Any
    ) -> None:
        check_options(SREM, options, where="method")
        self.mask_repeated_images = mask_repeated_images
        options = {"check_finite": False, **options}  # the training watches its loss, without waiting for it
        self.objective = SREM(**options)
        self.warming = Warming()
        self.pulling = Pulling()
        self.starting = self.objective
        if not self.objective.complementary:
            # In an ablation without the complementary loss there is nothing to warm up with but the ranking of
            # all, unless the start is to be the same for everybody.
            ranking_of_all = {"filtration": False, "weighting": False}
            self.starting = SREM(
                **{**options, **({"complementary": True} if complementary_warmup else ranking_of_all)}
            )

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        if not warmup:
            self.warming.forget()
            self.pulling.forget()

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Terms:
        image_ids = batch.image_id if self.mask_repeated_images else None
        objective = self.starting if warmup else self.objective
        logits = matcher(batch)
        if warmup:
            self.warming.see(logits, image_ids)
        terms = objective(logits, warmup=warmup and objective.complementary, image_ids=image_ids)
        if warmup:
            self.pulling.see(terms)
        return terms

    def finish_epoch(self) -> None:
        self.warming.finish_epoch()
        self.pulling.finish_epoch()

    def warmed_up(self) -> bool:
        return self.warming.is_enough() and self.pulling.is_enough()

    def warmth(self) -> str:
        return f"{self.warming.in_words()}; {self.pulling.in_words()}"

    def too_cold(self) -> str:
        if not (self.objective.complementary and self.objective.weighting) or self.pulling.is_enough():
            return ""
        return (
            f"the warm-up ends early for SREM: {self.pulling.in_words()}, and below {ENOUGH:.2f} it may forget what it "
            "has learnt. Raise training.warmup_epochs, or set training.adaptive_warmup"
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {**self.warming.state_dict(), **self.pulling.state_dict()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.warming.load_state_dict(state)
        self.pulling.load_state_dict(state)
