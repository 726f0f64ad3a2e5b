"""Triton, where it is installed, and helpers that several kernels share.

Without Triton the modules of the kernels can still be imported, but not run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.ops.packing import Packing

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    tl = None


def jit(function: Any = None, **options: Any) -> Any:
    """`triton.jit`, or the function itself where Triton is not installed."""
    if function is None:
        return lambda given: jit(given, **options)
    return function if triton is None else triton.jit(**options)(function)


def block(size: int) -> int:
    """The block for `size` elements: a power of two, and at least 16, as matrix units need."""
    return max(16, 1 << (size - 1).bit_length())


def short_block(max_block: int) -> int:
    """The block for short captions: most are less than half as long as the longest may be."""
    return max(16, max_block // 2)


def precision(dtype: torch.dtype) -> str:
    """`input_precision` of products: for float32 PyTorch's own setting. Three TF32 products have float32's digits."""
    if dtype != torch.float32:
        return "ieee"  # half precision is multiplied exactly, and summed in float32
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def to_contiguous(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    """The tensors, contiguous and of one dtype."""
    return [t.to(dtype).contiguous() for t in tensors]


@jit
def caption_rows(cu_seqlens, text, num_texts, NODES: tl.constexpr):
    """Rows of a caption's nodes, and how many there are."""
    first = tl.load(cu_seqlens + text)
    count = 1 + tl.load(cu_seqlens + text + 1) - first
    k = tl.arange(0, NODES)
    return tl.where(k == 0, text, num_texts + first + k - 1), count


# Zeros for spare rows and columns, which belong to no caption. Only the device knows where they begin.

_ROWS = 32  # at a time
_PROGRAMS = 2  # an image: there are few spare rows
_LINES, _COLUMNS = 64, 16


def zero_spare_nodes(packing: Packing, *nodes: Tensor) -> None:
    """Zeros in the rows of nodes (n, m + W + ..., s) after the last caption."""
    for tensor in nodes:
        n, num_rows, width = tensor.shape
        zero_rows[(_PROGRAMS, n)](
            tensor, packing.cu_seqlens, packing.num_texts, num_rows, width, ROWS=_ROWS, WIDTH=block(width)
        )


def zero_spare_words(packing: Packing, *words: Tensor) -> None:
    """Zeros in the columns of words (n, r, W + ...) after the last caption."""
    for tensor in words:
        num_lines, num_columns = tensor.shape[0] * tensor.shape[1], tensor.shape[2]
        zero_columns[(-(-num_lines // _LINES),)](
            tensor, packing.cu_seqlens, packing.num_texts, num_lines, num_columns, LINES=_LINES, COLUMNS=_COLUMNS
        )  # fmt: skip


@jit(do_not_specialize=["num_texts", "num_rows"])
def zero_rows(values, cu_seqlens, num_texts, num_rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """One image; its programs take turns, ROWS rows each."""
    end = num_texts + tl.load(cu_seqlens + num_texts)
    column = tl.arange(0, WIDTH)
    first = end + tl.program_id(0) * ROWS
    while first < num_rows:
        row = first + tl.arange(0, ROWS)
        places = (tl.program_id(1).to(tl.int64) * num_rows + row)[:, None] * width + column[None, :]
        mask = (row < num_rows)[:, None] & (column < width)[None, :]
        tl.store(values + places, tl.zeros((ROWS, WIDTH), values.dtype.element_ty), mask=mask)
        first += tl.num_programs(0) * ROWS


@jit(do_not_specialize=["num_texts", "num_lines", "num_columns"])
def zero_columns(values, cu_seqlens, num_texts, num_lines, num_columns, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """LINES lines of words a program, COLUMNS words at a time."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    first = tl.load(cu_seqlens + num_texts)
    while first < num_columns:
        column = first + tl.arange(0, COLUMNS)
        places = line.to(tl.int64)[:, None] * num_columns + column[None, :]
        mask = (line < num_lines)[:, None] & (column < num_columns)[None, :]
        tl.store(values + places, tl.zeros((LINES, COLUMNS), values.dtype.element_ty), mask=mask)
        first += COLUMNS
