"""Zeros to the rows or columns of packed captions that belong to none. Only the device knows where they begin."""

from __future__ import annotations

from torch import Tensor

from sremkit.kernels.language import block, jit, tl
from sremkit.kernels.packing import Packing

_ROWS = 32  # at a time
_PROGRAMS = 2  # an image: tails are short
_LINES, _COLUMNS = 64, 16


def clear_tail(packing: Packing, *nodes: Tensor) -> None:
    """Zeros to the rows of nodes (n, m + W + ..., s) behind the last caption."""
    for tensor in nodes:
        n, num_rows, width = tensor.shape
        clear_rows[(_PROGRAMS, n)](
            tensor, packing.starts, packing.num_texts, num_rows, width, ROWS=_ROWS, WIDTH=block(width)
        )


def clear_last_words(packing: Packing, *words: Tensor) -> None:
    """Zeros to the columns of words (n, r, W + ...) behind the last caption."""
    for tensor in words:
        num_lines, num_columns = tensor.shape[0] * tensor.shape[1], tensor.shape[2]
        clear_columns[(-(-num_lines // _LINES),)](
            tensor, packing.starts, packing.num_texts, num_lines, num_columns, LINES=_LINES, COLUMNS=_COLUMNS
        )


@jit(do_not_specialize=["num_texts", "num_rows"])
def clear_rows(values, starts, num_texts, num_rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """One image; its programs take turns, ROWS rows each."""
    end = num_texts + tl.load(starts + num_texts)
    column = tl.arange(0, WIDTH)
    first = end + tl.program_id(0) * ROWS
    while first < num_rows:
        row = first + tl.arange(0, ROWS)
        places = (tl.program_id(1).to(tl.int64) * num_rows + row)[:, None] * width + column[None, :]
        mask = (row < num_rows)[:, None] & (column < width)[None, :]
        tl.store(values + places, tl.zeros((ROWS, WIDTH), values.dtype.element_ty), mask=mask)
        first += tl.num_programs(0) * ROWS


@jit(do_not_specialize=["num_texts", "num_lines", "num_columns"])
def clear_columns(
    values, starts, num_texts, num_lines, num_columns, LINES: tl.constexpr, COLUMNS: tl.constexpr
):
    """LINES lines of words a program, COLUMNS words at a time."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    first = tl.load(starts + num_texts)
    while first < num_columns:
        column = first + tl.arange(0, COLUMNS)
        places = line.to(tl.int64)[:, None] * num_columns + column[None, :]
        mask = (line < num_lines)[:, None] & (column < num_columns)[None, :]
        tl.store(values + places, tl.zeros((LINES, COLUMNS), values.dtype.element_ty), mask=mask)
        first += COLUMNS
