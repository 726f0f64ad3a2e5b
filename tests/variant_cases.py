"""Batches, and the loss with its gradient, for tests of SREM's variants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.objectives import Terms

SIZE = 10


def batch_of(image_ids: Tensor) -> Batch:
    return Batch(pair_id=torch.arange(len(image_ids), device=image_ids.device), image_id=image_ids)


def apart(size: int) -> Batch:
    return batch_of(torch.arange(size))


def loss_of(method: Any, logits: Tensor, batch: Batch, *, warmup: bool = False) -> tuple[Terms, Tensor]:
    """The terms and the gradient by the logits."""
    leaf = logits.clone().requires_grad_()
    terms = method.loss(lambda _: leaf, batch, warmup=warmup)
    (gradient,) = torch.autograd.grad(terms.total, leaf)
    return terms, gradient
