"""One step of the optimiser, from a batch to changed weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import Method
from sremkit.models.matcher import Matcher
from sremkit.objectives import Loss
from sremkit.recipes import Precision, TrainingSettings
from sremkit.training.distributed import join_ids, sum_gradients, sum_of_all
from sremkit.training.scorers import scorer_for


@dataclass(frozen=True)
class StepOutcome:
    """What a step leaves behind for those who watch: numbers, from which no gradient can be asked any more."""

    batch: Batch  # on the device, with the pairs of all processes
    loss: Tensor  # that of all processes, as are the backbone's own
    terms: Loss
    extra: dict[str, Tensor]  # the backbone's own losses
    pull: Tensor | None  # (b,) how strongly each given pair was pulled together


class OptimizerStep:
    """Loss, gradients, clipping and the update; nothing in it waits for the device, unless the method does.

    Args:
        world: how many processes share a batch.
    """

    def __init__(
        self,
        matcher: Matcher,
        method: Method,
        settings: TrainingSettings,
        *,
        device: torch.device,
        world: int = 1,
    ) -> None:
        self.matcher = matcher
        self.method = method
        self.settings = settings
        self.device = device
        self.world = world
        self.scorer = scorer_for(matcher, settings, world=world)
        self.optimizer = torch.optim.Adam(
            matcher.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=settings.recorded,
        )

    def __call__(self, batch: Batch, *, warmup: bool, full_precision: bool = False) -> StepOutcome:
        if self.world > 1:
            batch = join_ids(batch)
        self.matcher.train()
        with number_format("float32" if full_precision else self.settings.precision, self.device):
            terms = self.method.loss(self.scorer, batch, warmup=warmup)
        extra = self.scorer.take_extra()
        loss = terms.total + sum(extra.values())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.world > 1:
            sum_gradients(list(self.matcher.parameters()))
            extra = {name: sum_of_all(share) for name, share in extra.items()}
            loss = terms.total + sum(extra.values())
        for network in self.matcher.networks():
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.settings.clip)
        self.optimizer.step()
        # Nothing of the graph is handed on: a recording would keep it, and with it the stream of every gradient.
        terms = replace(terms, total=terms.total.detach())
        extra = {name: own.detach() for name, own in extra.items()}
        return StepOutcome(batch, loss.detach(), terms, extra, self.scorer.take_pull())

    def precision(self) -> torch.autocast:
        """The number format of this training, for products outside of steps too."""
        return number_format(self.settings.precision, self.device)


def number_format(precision: Precision, device: torch.device) -> torch.autocast:
    """Half precision inside the block if that was chosen; else products are what they are in this process.

    Without a memory of weights in half precision: inside of another region of this kind it would outlive a step, and
    steps would go on from the first weights; and a recording must not hold it.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
