"""SREM in the `Trainer` of transformers: `compute_loss`, and a callback that reports the end of the warm-up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.extras import require
from sremkit.integrations.warmup import Warmup, WarmupReport, as_warmup
from sremkit.objectives import SREM, Terms


class SREMTrainerMixin:
    """Put it before `Trainer`: `class PairTrainer(SREMTrainerMixin, Trainer): pass`.

    The model returns `logits_per_image`, as CLIP and SigLIP do. An input named `image_ids` goes to the criterion. Each
    process compares the pairs of its own batch.

    Args:
        criterion: `SREM()` by default.
        warmup: a number of batches, or what decides by itself; a `sremkit.WarmupMonitor` by default.
        logit_bias: added to the logits of a model without a bias of its own (CLIP has none, SigLIP has one).
        arguments: those of `Trainer`.
    """

    #: The loss is the mean of one batch, so `Trainer` divides it by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        *args: Any,
        criterion: SREM | None = None,
        warmup: Warmup | int | None = None,
        logit_bias: float = 0.0,
        **arguments: Any,
    ) -> None:
        self.criterion = SREM() if criterion is None else criterion
        self.warmup = as_warmup(warmup)
        self.logit_bias = logit_bias
        self.terms: Terms | None = None  # of the last batch
        super().__init__(*args, **arguments)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """SREM of the model's logits."""
        inputs = dict(inputs)
        image_ids = inputs.pop("image_ids", None)
        outputs = model(**inputs)
        logits = outputs.logits_per_image + self.logit_bias
        self.terms = self.criterion(logits, warmup=self.warmup.warmup, image_ids=image_ids)
        if model.training:
            self.warmup.update(self.terms)
        return (self.terms.total, outputs) if return_outputs else self.terms.total


def warmup_callback(warmup: Warmup) -> Any:
    """A `TrainerCallback` that prints a sentence when the warm-up is over, and adds it to the logs as `warmup`."""
    transformers = require("transformers", extra="hf", purpose="report to its Trainer")

    class WarmupCallback(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self.report = WarmupReport(warmup)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            sentence = self.report.changed()
            if sentence is not None and state.is_world_process_zero:
                print(f"step {state.global_step}: {sentence}", flush=True)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kw: Any) -> None:
            if logs is not None:
                logs["warmup"] = float(warmup.warmup)

    return WarmupCallback()
