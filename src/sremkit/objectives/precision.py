"""Matrix products in full float32, whatever autocast or TF32 would make of them.

A bfloat16 or TF32 product rounds logits to two or three digits, and the difference between a pair and its
hardest negative drowns in that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` without autocast and, on a CUDA device, without TF32.

    While compiling, TF32 is left as it is: a process-wide switch cannot be turned inside a graph.
    """
    with torch.autocast(device_type=left.device.type, enabled=False):
        if not left.is_cuda or torch.compiler.is_compiling():
            return left @ right
        with _without_tf32():
            return left @ right


@contextmanager
def _without_tf32() -> Iterator[None]:
    switches = torch.backends.cuda.matmul
    # Since torch 2.9 there are two names for one switch, and the old one raises once the new one was used.
    name, full = ("fp32_precision", "ieee") if hasattr(switches, "fp32_precision") else ("allow_tf32", False)
    before = getattr(switches, name)
    setattr(switches, name, full)
    try:
        yield
    finally:
        setattr(switches, name, before)
