"""SREM of two embeddings with a warm-up: what the adapters for losses of embeddings share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sremkit.integrations.warmup import Warmup, as_warmup
from sremkit.objectives import SREM, Terms, TiledSREM


class EmbeddingLoss(nn.Module):
    """A loss module that knows by itself whether it is in the warm-up.

    `terms` holds the result of the last batch: energies, selected pairs, weights. The state of the warm-up is part of
    `state_dict`.

    Args:
        criterion: an `SREM`, or for large batches a `TiledSREM`; `SREM()` by default. With
            `TiledSREM(across_processes=True)` the loss is that of the joined batch of all processes, and its gradient
            is right for `DistributedDataParallel`, which averages over the processes.
        warmup: a number of batches, or what decides by itself; a `sremkit.WarmupMonitor` by default.
    """

    def __init__(self, criterion: SREM | None = None, *, warmup: Warmup | int | None = None) -> None:
        super().__init__()
        self.criterion = SREM() if criterion is None else criterion
        self.warmup = as_warmup(warmup)
        self.terms: Terms | None = None

    def total(
        self,
        image_emb: Tensor,
        text_emb: Tensor,
        scale: Tensor | float,
        bias: Tensor | float,
        *,
        image_ids: Tensor | None = None,
    ) -> Tensor:
        """The loss of one batch; outside of training (`eval()`, `no_grad`) the warm-up does not go on."""
        terms = self.criterion.from_embeddings(
            image_emb, text_emb, scale, bias, warmup=self.warmup.warmup, image_ids=image_ids
        )
        if self.training and torch.is_grad_enabled():
            self.warmup.update(terms)
        self.terms = terms
        if isinstance(self.criterion, TiledSREM) and self.criterion.across_processes:
            return for_averaged_gradients(terms.total)
        return terms.total

    def get_extra_state(self) -> dict[str, Tensor]:
        return self.warmup.state_dict()

    def set_extra_state(self, state: Any) -> None:
        self.warmup.load_state_dict(state)


def for_averaged_gradients(total: Tensor) -> Tensor:
    """The same value with a gradient times the number of processes.

    `TiledSREM(across_processes=True)` has gradients that are to be summed over the processes;
    `DistributedDataParallel`, Accelerate and Lightning average them.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    return total + (world_size - 1) * (total - total.detach())
