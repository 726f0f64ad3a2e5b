"""The first pass over one direction: the given pair, the hardest negative, and what tells whether a pair is clean.

How strongly an energy is pushed depends on how many pairs of the batch are clean, so this comes before the rest.
A pair is clean when it leads its row and its energy lies below the threshold. The second needs an exponential of
every logit; but with m the greatest of a row of b logits,

    m <= -E <= m + log b

settles it for nearly all rows, and the exponentials are left to the second pass. Where looking at the numbers
would make the host wait for the device, and where one block holds everything and is kept, nothing is left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sremkit.objectives.blocks import Blocks, first_max, set_at, set_pairs
from sremkit.objectives.candidates import low


class RowMask(Protocol):
    """A (b, b) mask of which rows can be had."""

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Survey(NamedTuple):
    """What is found in a block of k rows; every tensor is (k,)."""

    positive: Tensor  # F_ii
    hard: Tensor  # F_i,phi(i)
    hard_index: Tensor  # phi(i)
    rest: Tensor  # logsumexp over the row without phi(i), or at least F_ii where that settles what is clean


def survey(blocks: Blocks, rows: slice, excluded: RowMask | None, threshold: float) -> Survey:
    """Look through a block of rows."""
    if blocks.single or not blocks.on_cpu:
        return _survey_fully(blocks, rows, excluded)
    block = blocks.glance(rows)
    positive, hard, hard_index = _find_hardest(block, rows, excluded)
    slack = 1 + math.log(len(blocks))  # the 1 covers rounding
    leads = (positive > hard) & (positive <= -threshold) & (positive + slack >= -threshold)
    open_rows = leads.nonzero().squeeze(1)
    rest = positive.clone()
    if len(open_rows):
        others = block[open_rows]
        set_at(others, hard_index[open_rows], low(block.dtype))
        set_at(others, open_rows + rows.start, positive[open_rows])
        rest[open_rows] = others.logsumexp(dim=1)
    return Survey(positive, hard, hard_index, rest)


def _survey_fully(blocks: Blocks, rows: slice, excluded: RowMask | None) -> Survey:
    """With the logsumexp of every row. A single block stays in the first two buffers: logits and softmax."""
    block, share, *_ = blocks.buffers(rows)
    blocks.load(rows, into=block, scratch=share)
    positive, hard, hard_index = _find_hardest(block, rows, excluded)
    set_at(block, hard_index, low(block.dtype))
    set_pairs(block, rows, positive)
    torch.softmax(block, dim=1, out=share)
    return Survey(positive, hard, hard_index, logsumexp(block, share))


def _find_hardest(block: Tensor, rows: slice, excluded: RowMask | None) -> tuple[Tensor, Tensor, Tensor]:
    """F_ii and the hardest negative with its place; what is no negative is left low in the block."""
    if excluded is not None:
        block.masked_fill_(excluded[rows], low(block.dtype))
    positive = block.diagonal(rows.start).clone()
    set_pairs(block, rows, low(block.dtype))
    hard, hard_index = first_max(block)
    return positive, hard, hard_index


def logsumexp(block: Tensor, share: Tensor) -> Tensor:
    """Of each row, at the price of a softmax, which is lower: `share` is the softmax of the block."""
    return block.amax(dim=1) - share.amax(dim=1).log()
