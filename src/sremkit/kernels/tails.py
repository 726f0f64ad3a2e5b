"""Zeros to the rows of packed nodes that belong to no caption. Only the device knows where they begin."""

from __future__ import annotations

from torch import Tensor

from sremkit.kernels.language import block, jit, tl
from sremkit.kernels.packing import Packing

_ROWS = 32  # a program


def clear_tail(packing: Packing, *nodes: Tensor) -> None:
    """Zeros to the rows of nodes (n, m + W + ..., s) behind the last caption."""
    for tensor in nodes:
        n, num_rows, width = tensor.shape
        clear_rows[(-(-num_rows // _ROWS), n)](
            tensor, packing.starts, packing.num_texts, num_rows, width, ROWS=_ROWS, WIDTH=block(width)
        )


@jit(do_not_specialize=["num_texts", "num_rows"])
def clear_rows(values, starts, num_texts, num_rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """ROWS rows of one image a program; most programs have nothing to do."""
    end = num_texts + tl.load(starts + num_texts)
    first = tl.program_id(0) * ROWS
    if first + ROWS > end:
        row, column = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        places = (tl.program_id(1).to(tl.int64) * num_rows + row)[:, None] * width + column[None, :]
        mask = ((row >= end) & (row < num_rows))[:, None] & (column < width)[None, :]
        tl.store(values + places, tl.zeros((ROWS, WIDTH), values.dtype.element_ty), mask=mask)
