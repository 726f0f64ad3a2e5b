"""One batch over several processes, for objectives that look at all of it.

Every process brings some pairs, not necessarily as many as the others; joined, they lie in the order of the
ranks. Work on the joined batch is divided evenly, whoever brought what.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Share(NamedTuple):
    """What of the joined batch is this process's; all of it, where there is but one."""

    brought: list[int]  # pairs that each process brings
    own: slice  # where this process's pairs lie
    computed: list[int]  # rows that each process works on
    rows: slice  # the ones this process works on

    @property
    def world(self) -> int:
        return len(self.brought)

    def gather_own(self, own: Tensor) -> Tensor:
        """What all processes brought, without gradient."""
        return gather_rows(own.detach(), self.brought)

    def gather_computed(self, rows: Tensor) -> Tensor:
        """What all processes computed for their rows."""
        return gather_rows(rows, self.computed)

    def add_up(self, *partial: Tensor) -> None:
        """Put the sum over all processes into each tensor."""
        if self.world > 1:
            for tensor in partial:
                dist.all_reduce(tensor)


def share_alone(length: int) -> Share:
    """The whole batch in one process."""
    return Share([length], slice(0, length), [length], slice(0, length))


def share_of_group(length: int, device: torch.device) -> Share:
    """This process's share in the default group, to which it brings `length` pairs."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "across_processes=True needs a process group and there is none; start with torchrun and call "
            "torch.distributed.init_process_group, or leave across_processes out"
        )
    world, rank = dist.get_world_size(), dist.get_rank()
    brought = lengths_of_all(length, device)
    first, total = sum(brought[:rank]), sum(brought)
    edges = [total * k // world for k in range(world + 1)]
    computed = [end - start for start, end in pairwise(edges)]
    return Share(brought, slice(first, first + length), computed, slice(edges[rank], edges[rank + 1]))


def lengths_of_all(own: int, device: torch.device) -> list[int]:
    """The number that each process of the default group gives, in the order of their ranks."""
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    lengths[dist.get_rank()] = own
    dist.all_reduce(lengths)
    return lengths.tolist()


def gather_rows(own: Tensor, sizes: list[int]) -> Tensor:
    """The rows of all processes, of which each gives as many as `sizes` says; shorter shares travel padded."""
    if len(sizes) == 1:
        return own
    sent = own.to(torch.uint8) if own.dtype == torch.bool else own
    padded = sent.new_zeros((max(sizes), *own.shape[1:]))
    padded[: len(own)] = sent
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    return torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)]).to(own.dtype)
