"""A square matrix, or its transpose, in blocks of rows that stay in cache; and the first pass over a block.

A pass over a large matrix is bound by memory bandwidth, and allocating a matrix costs more than a pass. So the
fused objective takes a block of rows through all of its steps before the next. While compiling there is one block:
the compiler fuses the passes itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sremkit.objectives.logits import mask_value

_CPU_ELEMENTS = 1 << 19  # per thread: buffers of 2 MiB in float32
_DEVICE_ELEMENTS = 1 << 25  # bounds the memory; small blocks would not occupy a GPU
_NUM_BUFFERS = 4  # as many as the second pass uses
_GROUP = 64  # columns that `first_max` reduces together


class Blocks(ABC):
    """Some rows of a (b, b) matrix, or with `transposed` of its transpose, in blocks of k rows.

    Iterating gives the slices of rows. A subclass defines the source of the rows and the target of their gradient.
    """

    def __init__(self, like: Tensor, rows: slice, *, rows_per_block: int, transpose_of: Blocks | None = None) -> None:
        """
        Args:
            like: a tensor with b rows of the matrix's dtype and device.
            rows: those that are iterated over.
            transpose_of: blocks of the transpose, whose buffers are shared.
        """
        self.transposed: bool = transpose_of is not None and not transpose_of.transposed
        self.size, self.on_cpu = len(like), like.device.type == "cpu"
        self.row_range, self.rows_per_block = rows, rows_per_block
        if transpose_of is None:
            self._buffers = [like.new_empty(rows_per_block * len(like)) for _ in range(_NUM_BUFFERS)]
        else:
            self._buffers = transpose_of._buffers

    @property
    @abstractmethod
    def T(self) -> Blocks:  # noqa: N802 (like torch.Tensor.T)
        """The blocks of the transpose, with the same buffers."""

    @property
    def single(self) -> bool:
        """Whether one block holds all rows."""
        return bool(self.rows_per_block >= self.row_range.stop - self.row_range.start)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[slice]:
        first, end = self.row_range.start, self.row_range.stop
        # A process without rows has one empty block, so that it takes part in the collectives.
        for start in range(first, max(end, first + 1), self.rows_per_block):
            yield slice(start, min(start + self.rows_per_block, end))

    def buffers(self, rows: slice) -> list[Tensor]:
        """Uninitialized scratch matrices (k, b)."""
        return [b[: (rows.stop - rows.start) * self.size].view(-1, self.size) for b in self._buffers]

    def read_rows(self, rows: slice) -> Tensor:
        """The block's rows (k, b) for searching, in the first buffer."""
        block, scratch, *_ = self.buffers(rows)
        return self.load(rows, into=block, scratch=scratch)

    @abstractmethod
    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor:
        """Write the block's rows (k, b) to `into`; `scratch` is overwritten."""

    @abstractmethod
    def write_gradient(self, target: Any, rows: slice, values: Tensor, scratch: Tensor) -> None:
        """Add the gradient `values` (k, b) of the block's rows to the target."""

    def gather(self, parts: tuple[Tensor, ...]) -> Tensor:
        """(b,) from the results (k,) of all blocks."""
        return torch.cat(parts)


class RowBlocks(Blocks):
    """Blocks of a matrix in memory, or with `transposed` of its transpose."""

    def __init__(self, matrix: Tensor, *, transpose_of: RowBlocks | None = None) -> None:
        rows_per_block = _rows_per_block(matrix)
        super().__init__(matrix, slice(0, len(matrix)), rows_per_block=rows_per_block, transpose_of=transpose_of)
        self.matrix = matrix

    @property
    def T(self) -> RowBlocks:  # noqa: N802 (like torch.Tensor.T)
        return RowBlocks(self.matrix, transpose_of=self)

    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor:
        if not self.transposed:
            return into.copy_(self.matrix[rows])
        # Via a (b, k) matrix: copying a column directly touches one page of memory per element.
        columns = scratch.view(len(self.matrix), -1)  # (b, k)
        return into.copy_(columns.copy_(self.matrix[:, rows]).T)

    def read_rows(self, rows: slice) -> Tensor:
        if not self.transposed:
            return super().read_rows(rows)
        # A transposed view of the columns: making it contiguous would cost as much as two softmaxes.
        return self.buffers(rows)[0].view(len(self.matrix), -1).copy_(self.matrix[:, rows]).T

    def write_gradient(self, target: Tensor, rows: slice, values: Tensor, scratch: Tensor) -> None:
        if self.transposed:  # columns come first and overwrite
            target[:, rows].copy_(scratch.view(len(self.matrix), -1).copy_(values.T))
        else:
            target[rows].add_(values)


def _rows_per_block(matrix: Tensor) -> int:
    if torch.compiler.is_compiling():
        return len(matrix)
    elements = _CPU_ELEMENTS * torch.get_num_threads() if matrix.device.type == "cpu" else _DEVICE_ELEMENTS
    return min(len(matrix), max(1, elements // len(matrix)))


class RowMask(Protocol):
    """A (b, b) mask that can be indexed by rows."""

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class FirstPass(NamedTuple):
    """The result for a block of k rows; every tensor is (k,)."""

    positive: Tensor  # F_ii
    hard: Tensor  # F_i,phi(i)
    hard_index: Tensor  # phi(i)
    rest: Tensor  # logsumexp over the row without phi(i), or its lower bound F_ii where that decides


def first_pass(blocks: Blocks, rows: slice, excluded: RowMask | None, threshold: float) -> FirstPass:
    """The given pair and the hardest negative of each row, and what decides whether the pair is clean.

    The gradient of the energy bound depends on the number of clean pairs in the batch, so this precedes the second
    pass. A pair is clean when it is the maximum of its row and its energy lies below the threshold. The energy needs
    the exponential of every logit. But with m the maximum of a row of b logits,

        m <= -E <= m + log b

    decides it for nearly all rows without exponentials, which are left to the second pass. On a GPU, where this test
    would make the host wait for the device, and for a single block, which is kept for the second pass, every energy is
    computed.
    """
    if blocks.single or not blocks.on_cpu:
        return _with_every_energy(blocks, rows, excluded)
    block = blocks.read_rows(rows)
    positive, hard, hard_index = _find_hardest(block, rows, excluded)
    slack = 1 + math.log(len(blocks))  # 1 for rounding
    undecided = (positive > hard) & (positive <= -threshold) & (positive + slack >= -threshold)
    open_rows = undecided.nonzero().squeeze(1)
    rest = positive.clone()
    if len(open_rows):
        others = block[open_rows]
        set_at(others, hard_index[open_rows], mask_value(block.dtype))
        set_at(others, open_rows + rows.start, positive[open_rows])
        rest[open_rows] = others.logsumexp(dim=1)
    return FirstPass(positive, hard, hard_index, rest)


def _with_every_energy(blocks: Blocks, rows: slice, excluded: RowMask | None) -> FirstPass:
    """With the logsumexp of every row. A single block stays in the first two buffers: logits and softmax."""
    block, probs, *_ = blocks.buffers(rows)
    blocks.load(rows, into=block, scratch=probs)
    positive, hard, hard_index = _find_hardest(block, rows, excluded)
    set_at(block, hard_index, mask_value(block.dtype))
    set_pairs(block, rows, positive)
    torch.softmax(block, dim=1, out=probs)
    return FirstPass(positive, hard, hard_index, logsumexp(block, probs))


def _find_hardest(block: Tensor, rows: slice, excluded: RowMask | None) -> tuple[Tensor, Tensor, Tensor]:
    """F_ii and the hardest negative with its index; leaves all but the negatives masked in the block."""
    if excluded is not None:
        block.masked_fill_(excluded[rows], mask_value(block.dtype))
    positive = block.diagonal(rows.start).clone()
    set_pairs(block, rows, mask_value(block.dtype))
    return positive, *first_max(block)


def logsumexp(block: Tensor, probs: Tensor) -> Tensor:
    """Logsumexp of each row from `probs`, the softmax of the block, which is cheaper than from the block alone."""
    return block.amax(dim=1) - probs.amax(dim=1).log()


def first_max(block: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each row and its first index, as `block.max(dim=1)`.

    On a CPU argmax is many times slower than max, so this finds the group of columns first and then the index inside
    the group.
    """
    if block.device.type != "cpu" or block.shape[1] % _GROUP or torch.compiler.is_compiling():
        value, index = block.max(dim=1)
        return value, index
    groups = block.unflatten(1, (-1, _GROUP))  # (k, b / _GROUP, _GROUP)
    # Of a transposed view the maximum along the rows would be ten times slower.
    group_max = groups.amax(dim=2) if block.is_contiguous() else block.T.unflatten(0, (-1, _GROUP)).amax(dim=1).T
    value, group = group_max.max(dim=1)
    members = groups.gather(1, group[:, None, None].expand(-1, 1, _GROUP)).squeeze(1)  # (k, _GROUP)
    return value, group * _GROUP + members.argmax(dim=1)


def set_pairs(block: Tensor, rows: slice, value: Tensor | float) -> None:
    """Write `value` at the given pairs of a block of rows."""
    if torch.compiler.is_compiling():
        set_at(block, torch.arange(rows.start, rows.stop, device=block.device), value)
    elif isinstance(value, Tensor):
        block.diagonal(rows.start).copy_(value)
    else:
        block.diagonal(rows.start).fill_(value)


def set_at(block: Tensor, index: Tensor, value: Tensor | float) -> None:
    """Write one entry of each row, at column `index`."""
    entry = value[:, None] if isinstance(value, Tensor) else value
    if torch.compiler.is_compiling():  # a comparison fuses with other operations, a scatter does not
        columns = torch.arange(block.shape[1], device=block.device)
        block.copy_(torch.where(columns == index[:, None], entry, block))
    else:
        block.scatter_(1, index[:, None], entry)


def add_at(block: Tensor, index: Tensor, value: Tensor) -> None:
    """Add to one entry of each row. Rows are distinct, so no atomic addition is needed."""
    set_at(block, index, take_at(block, index) + value)


def take_at(block: Tensor, index: Tensor) -> Tensor:
    """(k,) one entry of each row, at column `index`."""
    return block.gather(1, index[:, None]).squeeze(1)
