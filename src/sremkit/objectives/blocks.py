"""A square matrix, or its transpose, taken a few rows at a time through buffers that stay in cache.

A pass over a large matrix costs memory traffic rather than arithmetic, and a fresh matrix costs more than a
pass. So the fast objective takes a block of rows through all of its steps before it turns to the next. While
compiling there is one block: the compiler fuses the passes itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

_CPU_ELEMENTS = 1 << 19  # for each thread: 2 MiB of float32 a buffer
_DEVICE_ELEMENTS = 1 << 25  # only bounds the memory: small blocks would starve a GPU
_GROUP = 64  # columns searched together for a maximum


class Blocks(Protocol):
    """The rows of a square matrix, block by block, wherever they come from and their gradient goes."""

    @property
    def single(self) -> bool: ...
    @property
    def on_cpu(self) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[slice]: ...
    def buffers(self, rows: slice) -> list[Tensor]: ...
    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor: ...
    def glance(self, rows: slice) -> Tensor: ...
    def deliver(self, target: Any, rows: slice, values: Tensor, scratch: Tensor) -> None: ...
    def join(self, parts: tuple[Tensor, ...]) -> Tensor: ...


class RowBlocks:
    """The rows of a matrix, or with `transposed` of its transpose, block by block."""

    def __init__(
        self,
        matrix: Tensor,
        *,
        num_buffers: int = 0,
        transposed: bool = False,
        buffers: list[Tensor] | None = None,
    ) -> None:
        self.matrix = matrix
        self.transposed = transposed
        self.rows_a_block = _rows_a_block(matrix)
        if buffers is None:
            buffers = [matrix.new_empty(self.rows_a_block * len(matrix)) for _ in range(num_buffers)]
        self._buffers = buffers

    @property
    def T(self) -> RowBlocks:  # noqa: N802 (as for a tensor)
        """The blocks of the transpose, with the same buffers."""
        return RowBlocks(self.matrix, transposed=not self.transposed, buffers=self._buffers)

    @property
    def single(self) -> bool:
        """Whether one block holds the whole matrix."""
        return self.rows_a_block == len(self.matrix)

    @property
    def on_cpu(self) -> bool:
        return self.matrix.device.type == "cpu"

    def __len__(self) -> int:
        return len(self.matrix)

    def __iter__(self) -> Iterator[slice]:
        size = len(self.matrix)
        for start in range(0, size, self.rows_a_block):
            yield slice(start, min(start + self.rows_a_block, size))

    def buffers(self, rows: slice) -> list[Tensor]:
        """Scratch matrices (k, b) for the block's k rows, holding whatever was left in them."""
        size = len(self.matrix)
        return [buffer[: (rows.stop - rows.start) * size].view(-1, size) for buffer in self._buffers]

    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor:
        """Copy the block's rows to `into`; `scratch` is overwritten."""
        if not self.transposed:
            return into.copy_(self.matrix[rows])
        # By way of a narrow matrix: a column read directly touches one page of memory for each number.
        narrow = scratch.view(len(self.matrix), -1)  # (b, k)
        return into.copy_(narrow.copy_(self.matrix[:, rows]).T)

    def glance(self, rows: slice) -> Tensor:
        """A copy (k, b) of the block's rows to be searched. Those of the transpose are not turned around, which costs
        as much as two softmaxes, but only looked at as if they were."""
        if not self.transposed:
            return self.buffers(rows)[0].copy_(self.matrix[rows])
        return self.buffers(rows)[0].view(len(self.matrix), -1).copy_(self.matrix[:, rows]).T

    def deliver(self, target: Tensor, rows: slice, values: Tensor, scratch: Tensor) -> None:
        """Bring the block's `values` to their place: columns come first and are written, rows are added."""
        if self.transposed:
            target[:, rows].copy_(scratch.view(len(self.matrix), -1).copy_(values.T))
        else:
            target[rows].add_(values)

    def join(self, parts: tuple[Tensor, ...]) -> Tensor:
        """(b,) what was found for the rows of each block."""
        return torch.cat(parts)


def _rows_a_block(matrix: Tensor) -> int:
    if torch.compiler.is_compiling():
        return len(matrix)
    elements = _CPU_ELEMENTS * torch.get_num_threads() if matrix.device.type == "cpu" else _DEVICE_ELEMENTS
    return min(len(matrix), max(1, elements // len(matrix)))


def first_max(block: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each row and its first place, as `block.max(dim=1)`.

    On a CPU the search for the place is many times slower than the maximum, so it looks for the group of
    columns first and then inside the group.
    """
    size = block.shape[1]
    if block.device.type != "cpu" or size % _GROUP or torch.compiler.is_compiling():
        value, place = block.max(dim=1)
        return value, place
    groups = block.unflatten(1, (-1, _GROUP))  # (k, b / _GROUP, _GROUP)
    highest = groups.amax(dim=2) if block.is_contiguous() else _highest_below(block)
    value, group = highest.max(dim=1)
    members = groups.gather(1, group[:, None, None].expand(-1, 1, _GROUP)).squeeze(1)  # (k, _GROUP)
    return value, group * _GROUP + members.argmax(dim=1)


def _highest_below(block: Tensor) -> Tensor:
    """The maximum of each group in a transposed view, ten times faster than along its rows."""
    return block.T.unflatten(0, (-1, _GROUP)).amax(dim=1).T


def set_pairs(block: Tensor, rows: slice, value: Tensor | float) -> None:
    """Write `value` where the given pairs lie in a block of rows."""
    if torch.compiler.is_compiling():
        set_at(block, torch.arange(rows.start, rows.stop, device=block.device), value)
    elif isinstance(value, Tensor):
        block.diagonal(rows.start).copy_(value)
    else:
        block.diagonal(rows.start).fill_(value)


def set_at(block: Tensor, index: Tensor, value: Tensor | float) -> None:
    """Write one entry of each row, at column `index`."""
    entry = value[:, None] if isinstance(value, Tensor) else value
    if torch.compiler.is_compiling():  # a comparison fuses with its neighbours, a scatter does not
        columns = torch.arange(block.shape[1], device=block.device)
        block.copy_(torch.where(columns == index[:, None], entry, block))
    else:
        block.scatter_(1, index[:, None], entry)


def add_at(block: Tensor, index: Tensor, value: Tensor) -> None:
    """Add to one entry of each row. No two share a place, so no atomic addition is needed."""
    set_at(block, index, take_at(block, index) + value)


def take_at(block: Tensor, index: Tensor) -> Tensor:
    """(k,) one entry of each row, at column `index`."""
    return block.gather(1, index[:, None]).squeeze(1)
