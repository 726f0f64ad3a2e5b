"""Training in several processes: every process computes the loss of the joined batch.

Each process encodes its own share of the pairs. Texts are gathered with gradient, each process compares its images with
all texts, and the rows are gathered to the full matrix, on which every process computes the same loss. Summing the
gradients of the parameters over processes then gives exactly the gradient of one process on the joined batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sremkit.config.recipes import DEVICE_NAMES, DEVICES
from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.models.matcher import Encoded, Matcher
from sremkit.objectives.gather import gather_lengths, gather_rows
from sremkit.training.diagnostics import StoppedError


@dataclass(frozen=True)
class Process:
    """This process among those that train together."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


def this_process(device: str = "auto") -> Process:
    """Rank, number of processes and device; joins the process group if there is one (torchrun, accelerate)."""
    _check_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Process(rank=0, world=1, device=torch.device(device))
    accelerate = require("accelerate", extra="train", purpose="train in several processes")
    state = accelerate.PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
    return Process(rank=state.process_index, world=state.num_processes, device=state.device)


@contextmanager
def process_group(device: str = "auto") -> Iterator[Process]:
    """This process in its process group, which is destroyed at the end.

    All processes wait for the slowest, also after a requested stop: one that leaves early can abort the last collective
    of another.
    """
    try:
        try:
            yield this_process(device)
        except StoppedError:
            _barrier()
            raise
        _barrier()
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _barrier() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _check_device(device: str) -> None:
    """Refuse a device that does not exist, before anything is read or built for it."""
    if not DEVICES.fullmatch(device):
        raise UserError(f"there is no device called '{device}'; choose {DEVICE_NAMES}")
    instead = "use the CPU: training.device=cpu, or --device cpu in an evaluation"
    if device == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"the device 'mps' was chosen, but no MPS device was found; {instead}")
    if not device.startswith("cuda"):
        return
    if not torch.cuda.is_available():
        raise UserError(f"the device '{device}' was chosen, but no CUDA device was found; {instead}")
    count, number = torch.cuda.device_count(), int(device.partition(":")[2] or 0)
    if number >= count:
        raise UserError(
            f"the device '{device}' was chosen, but there are {count} CUDA devices, from cuda:0 to cuda:{count - 1}"
        )


class JointForward:
    """The forward pass whose logits cover the pairs of all processes, in the order of their ranks."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        for module in matcher.modules():
            if hasattr(module, "all_reduce"):  # batch statistics are those of the joined batch
                module.all_reduce = all_reduce_sum  # type: ignore[assignment]

    def __call__(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        images, texts = self.matcher.encode(batch)
        # Means over the own pairs, weighted by their share, so that the sum over processes is the mean over all.
        share = len(images) / len(batch)
        losses = {name: share * loss for name, loss in self.matcher.extra_losses(batch, images).items()}
        own_rows = self.matcher.compare(images, gather_encoded(texts))  # (b of this process, b of all)
        return gather_replicated(own_rows), losses


def join_ids(batch: Batch) -> Batch:
    """The batch with the pair and image numbers of all processes; features stay those of this process."""
    sizes = gather_lengths(len(batch), batch.pair_id.device)
    return replace(batch, pair_id=gather_rows(batch.pair_id, sizes), image_id=gather_rows(batch.image_id, sizes))


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
        if t.is_floating_point():
            return _GatherAndReduce.apply(t)
        return gather_rows(t, gather_lengths(len(t), t.device))

    return Encoded(
        local=gathered(encoded.local, local=True),
        mask=gathered(encoded.mask, local=True),
        pooled=gathered(encoded.pooled, local=False),
    )


def gather_replicated(rows: Tensor) -> Tensor:
    """Rows of all processes, for a loss that every process computes alike."""
    return _GatherReplicated.apply(rows)


def all_reduce_sum(own: Tensor) -> Tensor:
    """The sum over all processes, with gradient."""
    return _AllReduceSum.apply(own)


def all_reduce_max(own: int, *, world: int, device: torch.device) -> int:
    """The largest value of all processes."""
    if world == 1:
        return own
    largest = torch.tensor(own, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def all_reduce_gradients(parameters: list[nn.Parameter]) -> None:
    """Sum the gradients over all processes; an unused parameter has a gradient of 0, a frozen one none."""
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


class _GatherAndReduce(torch.autograd.Function):
    """Tensors of all processes. Backward: the gradients of all processes are summed and returned to the owner."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        ctx.sizes = gather_lengths(len(own), own.device)
        return gather_rows(own, ctx.sizes)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return _summed(gradient).split(ctx.sizes)[dist.get_rank()]


class _AllReduceSum(torch.autograd.Function):
    """The sum over processes. Backward: each term acts on every process, so the gradients are summed."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        return _summed(own.detach())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return _summed(gradient)


class _GatherReplicated(torch.autograd.Function):
    """Rows of all processes. Backward: the own slice, since every process has the same gradient already."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        ctx.sizes = gather_lengths(len(own), own.device)
        return gather_rows(own, ctx.sizes)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.split(ctx.sizes)[dist.get_rank()].contiguous()


def _summed(own: Tensor) -> Tensor:
    """A new tensor: the collective works in place, and autograd may share an incoming gradient."""
    total = own.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
