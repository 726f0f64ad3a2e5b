"""Matrix products in full float32, whatever autocast or TF32 would make of them.

A bfloat16 or TF32 product rounds logits to two or three digits, and the difference between a pair and its
hardest negative drowns in that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` and its gradient without autocast and, on a CUDA device, without TF32.

    While compiling, both are left as they are: process-wide switches cannot be turned inside a graph.
    """
    return left @ right if torch.compiler.is_compiling() else _Product.apply(left, right)


@torch.no_grad()
def add_product(target: Tensor, left: Tensor, right: Tensor, *, keep: float = 1.0) -> Tensor:
    """`keep * target + left @ right` in the place of `target`, in the same precision; keep 0 forgets it.

    Nothing else is allocated: large results that come and go between small ones that stay leave holes in a
    process's memory, which then grows with every block.
    """
    with torch.autocast(device_type=left.device.type, enabled=False):
        if not left.is_cuda:
            return target.addmm_(left, right, beta=keep)
        with _without_tf32():
            return target.addmm_(left, right, beta=keep)


class _Product(torch.autograd.Function):
    """A function of its own, because backward may run under autocast where forward did not."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return _exact(left, right)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return _exact(upstream, right.T), _exact(left.T, upstream)


def _exact(left: Tensor, right: Tensor) -> Tensor:
    with torch.autocast(device_type=left.device.type, enabled=False):
        if not left.is_cuda:
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
