"""SREM: the objective of the same name, after a warm-up by complementary learning alone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext, WarmupStatus
from sremkit.methods.common.state_dicts import prefixed, without_prefix
from sremkit.objectives import SREM, Terms, WarmupMonitor


@METHODS.register("srem")
class SREMMethod(Method, options_of=SREM):
    """SREM: energy-guided filtration, swapped gradient weighting, biased complementary learning.

    Args:
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
        complementary_warmup: for ablations: without `complementary`, warm up by the complementary loss all the same.
        check_finite: raise on NaN and infinite logits; the trainer checks the loss in any case, without waiting for it.
        options: the other hyperparameters of `sremkit.SREM`.
    """

    selects_pairs: ClassVar[bool] = True
    monitors_warmup: ClassVar[bool] = True
    returns_to_warmup: ClassVar[bool] = True

    def __init__(
        self,
        *,
        mask_repeated_images: bool = True,
        complementary_warmup: bool = False,
        check_finite: bool = False,
        **options: Any,
    ) -> None:
        self.mask_repeated_images = mask_repeated_images
        options = {"check_finite": check_finite, **options}
        self.objective = SREM(**options)
        self.monitor = WarmupMonitor(interval=None)
        self._is_monitored = True  # in the warm-up, and after it until an epoch ends ready
        self.warmup_objective = self.objective
        if not self.objective.complementary:
            # An ablation without the complementary loss warms up by the ranking loss of all pairs, unless all
            # rows of the ablation are to have the same warm-up.
            ranking_of_all = {"filtration": False, "weighting": False}
            changes = {"complementary": True} if complementary_warmup else ranking_of_all
            self.warmup_objective = SREM(**{**options, **changes})

    def start(self, context: TrainingContext) -> None:
        for objective in (self.objective, self.warmup_objective):
            objective.to(context.device)  # the level of the logits; a captured step cannot move it

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        self._is_monitored = warmup or self.monitor.warmup or (self._is_monitored and not self.monitor.is_ready())
        if self.monitor.warmup and not warmup:  # the first epoch after the warm-up
            self.monitor.warmup, self.monitor.share_at_end = False, self.monitor.share
        elif warmup:
            self.monitor.warmup = True

    def graph_key(self) -> Hashable:
        return self._is_monitored

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Terms:
        image_ids = batch.image_id if self.mask_repeated_images else None
        objective = self.warmup_objective if warmup else self.objective
        logits = forward(batch)
        terms = objective(logits, warmup=warmup and objective.complementary, image_ids=image_ids)
        if self._is_monitored:
            self.monitor.update(terms)
        return terms

    def finish_epoch(self) -> None:
        if self._is_monitored:
            self.monitor.read_all()

    def warmup_status(self) -> WarmupStatus:
        """Ready when the weights of the selected pairs are large enough; an ablation without them is always ready."""
        has_weights = self.objective.filtration and self.objective.weighting and self.objective.complementary
        return WarmupStatus(is_ready=not has_weights or self.monitor.is_ready(), message=self.monitor.message())

    def collapse_message(self) -> str:
        self.monitor.read()
        if not self.monitor.has_lost_selection():
            return ""
        return f"{self.monitor.share:.1%} of the pairs are selected, after {self.monitor.share_at_end:.1%} before"

    def state_dict(self) -> dict[str, Tensor]:
        return {
            **prefixed("objective", self.objective.state_dict()),
            **prefixed("monitor", self.monitor.state_dict()),
            "is_monitored": torch.tensor(self._is_monitored),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.objective.load_state_dict(without_prefix("objective", state))
        if "is_monitored" in state:  # not in a checkpoint of 0.1
            self.monitor.load_state_dict(without_prefix("monitor", state))
            self._is_monitored = bool(state["is_monitored"])
