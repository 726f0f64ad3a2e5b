"""Triton, where it is installed, and what every kernel needs of it.

Without Triton the kernels' modules can still be imported, only not run.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    tl = None

__all__ = [
    "EPSILON",
    "block",
    "caption_rows",
    "in_format",
    "jit",
    "precision",
    "short_block",
    "tl",
    "triton",
    "tunes",
]

EPSILON = 1e-8  # the models' own: a vector is divided by its length plus this


def jit(function: Any = None, **options: Any) -> Any:
    """`triton.jit`, or the function itself where there is no Triton."""
    if function is None:
        return lambda given: jit(given, **options)
    return function if triton is None else triton.jit(**options)(function)


def tunes() -> bool:
    """Whether kernels try several block sizes first: SREMKIT_AUTOTUNE=1 asks for it."""
    return os.environ.get("SREMKIT_AUTOTUNE", "0") == "1" and torch.cuda.is_available()


def block(size: int) -> int:
    """The block that holds `size` numbers: a power of two, and 16 at least, as matrix units want it."""
    return max(16, 1 << (size - 1).bit_length())


def short_block(longest: int) -> int:
    """The block for short captions, half of the longest ones': most are not half as long as the longest may be."""
    return max(16, longest // 2)


def precision(dtype: torch.dtype) -> str:
    """How a matrix unit multiplies this format: as PyTorch's own setting says for float32.

    Three TF32 products have float32's digits.
    """
    if dtype != torch.float32:
        return "ieee"  # half precision is multiplied exactly, and summed in float32
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def in_format(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    """The tensors, contiguous and in one number format."""
    return [t.to(dtype).contiguous() for t in tensors]


@jit
def caption_rows(starts, text, num_texts, NODES: tl.constexpr):
    """Rows of a caption's nodes, and how many there are."""
    first = tl.load(starts + text)
    count = 1 + tl.load(starts + text + 1) - first
    k = tl.arange(0, NODES)
    return tl.where(k == 0, text, num_texts + first + k - 1), count
