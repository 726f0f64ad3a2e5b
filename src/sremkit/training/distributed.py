"""One batch over several processes: every process sees the logits of the joined batch.

Each process encodes its own share of the pairs. Texts are gathered with gradient, each process compares
its images with all texts, and the rows are gathered to the full matrix, on which every process computes
the same loss. Summing the parameters' gradients over processes then gives exactly the gradient that one
process would have had on the joined batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models.matcher import Encoded, Matcher
from sremkit.objectives.processes import gather_rows, lengths_of_all


class JoinedMatcher(nn.Module):
    """A matcher whose logits cover the pairs of all processes, in the order of their ranks."""

    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher
        self.extra: dict[str, Tensor] = {}
        for part in matcher.modules():
            if hasattr(part, "add_up"):  # batch statistics are those of the joined batch too
                part.add_up = add_up  # type: ignore[assignment]

    def forward(self, batch: Batch) -> Tensor:
        images, texts = self.matcher.encode(batch)
        # A mean over the own pairs, weighted by their share, so that the sum over processes is the joint mean:
        # that of the gradients, and, by `sum_of_all`, that of the numbers.
        share = len(images) / len(batch)
        self.extra = {name: share * loss for name, loss in self.matcher.extra_losses(batch, images).items()}
        own_rows = self.matcher.compare(images, gather_encoded(texts))  # (b of this process, b of all)
        return gather_replicated(own_rows)


def join_ids(batch: Batch) -> Batch:
    """The batch with the pair and image numbers of all processes; features stay this process's own."""
    sizes = lengths_of_all(len(batch), batch.pair_id.device)
    return replace(
        batch,
        pair_id=gather_rows(batch.pair_id, sizes),
        image_id=gather_rows(batch.image_id, sizes),
    )


def gather_encoded(encoded: Encoded) -> Encoded:
    """Encodings of all processes; gradients flow back to the process that computed them."""
    longest = None
    if encoded.local is not None:
        length = torch.tensor(encoded.local.shape[1], device=encoded.local.device)
        dist.all_reduce(length, dist.ReduceOp.MAX)
        longest = int(length)

    def gathered(t: Tensor | None, *, local: bool) -> Tensor | None:
        if t is None:
            return None
        if local and longest is not None and t.shape[1] < longest:
            padding = t.new_zeros((t.shape[0], longest - t.shape[1], *t.shape[2:]))
            t = torch.cat([t, padding], dim=1)
        return (
            _GatherAndReduce.apply(t)
            if t.is_floating_point()
            else gather_rows(t, lengths_of_all(len(t), t.device))
        )

    return Encoded(
        local=gathered(encoded.local, local=True),
        mask=gathered(encoded.mask, local=True),
        pooled=gathered(encoded.pooled, local=False),
    )


def gather_replicated(rows: Tensor) -> Tensor:
    """Rows of all processes, for a loss that every process computes alike."""
    return _GatherReplicated.apply(rows)


def add_up(own: Tensor) -> Tensor:
    """The sum over all processes, with gradient."""
    return _Sum.apply(own)


def sum_of_all(own: Tensor) -> Tensor:
    """The sum over all processes, a number to be told, without gradient."""
    total = own.detach().clone()
    dist.all_reduce(total)
    return total


def any_of_all(own: bool, *, world: int, device: torch.device) -> bool:
    """Whether it is so in any process; all of them get the same answer, and wait for it."""
    if world == 1:
        return own
    answer = torch.tensor(int(own), device=device)
    dist.all_reduce(answer, dist.ReduceOp.MAX)
    return bool(answer)


def sum_gradients(parameters: list[nn.Parameter]) -> None:
    """Add up the gradients of all processes; a parameter unused here still takes part."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


class _GatherAndReduce(torch.autograd.Function):
    """All processes' tensors. Backward: each process's gradients are summed and sent back to the owner."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        ctx.sizes = lengths_of_all(len(own), own.device)
        return gather_rows(own, ctx.sizes)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.split(ctx.sizes)[dist.get_rank()]


class _Sum(torch.autograd.Function):
    """The sum over processes. Backward: a process's term acts on every process, so their gradients add up."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class _GatherReplicated(torch.autograd.Function):
    """All processes' rows. Backward: the own slice, since every process has the same gradient already."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        ctx.sizes = lengths_of_all(len(own), own.device)
        return gather_rows(own, ctx.sizes)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.split(ctx.sizes)[dist.get_rank()].contiguous()
