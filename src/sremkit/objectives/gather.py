"""One batch over several processes, for objectives of the joined batch.

Every process provides some pairs, not necessarily as many as the others; the joined batch is in the order of the ranks.
The rows of the joined batch are divided evenly among the processes, independent of which process provided them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    # The functions of this module have the default process group as a default argument, from the time of their import.
    # PyTorch imports it late, and then `destroy_process_group` leaves the group's threads running, one of which can
    # abort the process when the interpreter ends. Imported here, before there is a group, they hold none.
    import torch.distributed.nn.functional


class BatchShard(NamedTuple):
    """The part of the joined batch that belongs to this process; all of it if there is only one."""

    num_pairs: list[int]  # pairs that each process provides
    own: slice  # the position of this process's pairs
    num_rows: list[int]  # rows that each process computes
    rows: slice  # the rows that this process computes

    @property
    def world_size(self) -> int:
        return len(self.num_pairs)

    def gather_pairs(self, own: Tensor) -> Tensor:
        """Join a tensor of each process's pairs, without gradient."""
        return gather_rows(own.detach(), self.num_pairs)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Join a tensor of each process's computed rows."""
        return gather_rows(rows, self.num_rows)

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """Replace each tensor, in place, by its sum over the processes."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)


def single_process_shard(num_pairs: int) -> BatchShard:
    """The whole batch in one process."""
    return BatchShard([num_pairs], slice(0, num_pairs), [num_pairs], slice(0, num_pairs))


def group_shard(num_pairs: int, device: torch.device) -> BatchShard:
    """The shard of this process in the default group, to which it provides `num_pairs` pairs."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "across_processes=True needs a process group, and none is initialized; start with torchrun and call "
            "torch.distributed.init_process_group, or leave across_processes out"
        )
    world_size, rank = dist.get_world_size(), dist.get_rank()
    lengths = gather_lengths(num_pairs, device)
    first, total = sum(lengths[:rank]), sum(lengths)
    edges = [total * k // world_size for k in range(world_size + 1)]
    num_rows = [end - start for start, end in pairwise(edges)]
    return BatchShard(lengths, slice(first, first + num_pairs), num_rows, slice(edges[rank], edges[rank + 1]))


def gather_lengths(own: int, device: torch.device) -> list[int]:
    """One integer from each process of the default group, in the order of the ranks."""
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    lengths[dist.get_rank()] = own
    dist.all_reduce(lengths)
    return lengths.tolist()


def gather_rows(own: Tensor, lengths: list[int]) -> Tensor:
    """Concatenate the rows of all processes, `lengths` of them from each; for the transfer they are padded."""
    if len(lengths) == 1:
        return own
    sent = own.to(torch.uint8) if own.dtype == torch.bool else own
    padded = sent.new_zeros((max(lengths), *own.shape[1:]))
    padded[: len(own)] = sent
    received = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(received, padded)
    return torch.cat([part[:size] for part, size in zip(received, lengths, strict=True)]).to(own.dtype)
