"""What several ops share: precision, L2 normalisation, masked softmax, dropout, and second derivatives of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 1e-8
_VALUES = 1 << 16  # of a dropout draw
_MIN_ELEMENTS = 100_000  # PyTorch's own dropout takes a millisecond for so many


def full_precision(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 are returned unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_autocast(x: Tensor) -> torch.autocast:
    """Context in which autocast is disabled on the device of `x`."""
    return torch.autocast(device_type=x.device.type, enabled=False)


def l2_normalize(x: Tensor, dim: int = -1) -> Tensor:
    """x / (‖x‖ + 1e-8) in full precision; a zero vector stays zero."""
    x = full_precision(x)
    # The floor changes no norm that matters; it keeps first and second derivatives finite at zero.
    square = x.square().sum(dim=dim, keepdim=True).clamp_min(EPSILON**4)
    return x / (square.sqrt() + EPSILON)


def masked_softmax(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Softmax over the elements where `mask` is True; the others get exactly 0, also in rows without any."""
    # A finite fill: minus infinity would turn a row without any valid element into NaN.
    x = full_precision(x)
    filled = x.masked_fill(~mask, torch.finfo(x.dtype).min)
    return filled.softmax(dim=dim).masked_fill(~mask, 0.0)


class Dropout(nn.Dropout):
    """`nn.Dropout` with masks that are cheap on a CPU and independent on a GPU; compiled it is `nn.Dropout`.

    On a CPU PyTorch draws one random number after the other for every element, which takes as long as a matrix
    product. Here four elements share a draw; sixteen bits give the dropout rate to one part in 65,536.

    On a GPU PyTorch's dropout of half precision uses eight random numbers a thread and advances the generator by
    four, so half of a mask is repeated in the next one. Two towers then drop the same elements of the same pair:
    pairs can be recognised by their zeros, the loss falls to 0 and nothing is learnt. Drawn in float32, masks are
    independent.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or torch.compiler.is_compiling():
            return super().forward(x)
        if x.device.type != "cpu":
            return super().forward(full_precision(x)).to(x.dtype)
        dropped = round(self.p * _VALUES)
        if x.numel() < _MIN_ELEMENTS or not 0 < dropped < _VALUES:
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _VALUES // 2
        return x * kept.to(x.dtype).mul_(_VALUES / (_VALUES - dropped))


def differentiable_gradients(
    ctx: Any, reference: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor, *constants: Any
) -> tuple[Tensor | None, ...]:
    """What `backward` returns, with a graph of its own: gradients of the needed inputs, None for all that follow.

    Methods with a meta-step differentiate through a training step. Autograd cannot differentiate a kernel, so a
    backward pass that will itself be differentiated is computed by the plain reference instead, in full precision: a
    kernel takes inputs of several dtypes, its reference takes one.

    Args:
        ctx: of the autograd function, whose first inputs are `inputs`.
        reference: called with the inputs and the constants.
    """
    # Through aliases: an input may have been computed from another one, whose gradient must not include that path.
    aliases, needed = [x.view_as(x) for x in inputs], ctx.needs_input_grad
    wanted = [x for x, need in zip(aliases, needed, strict=False) if need]
    with without_autocast(upstream):
        result = reference(*map(full_precision, aliases), *constants)
        upstream = upstream.to(result.dtype)
        found = iter(torch.autograd.grad(result, wanted, upstream, create_graph=True, allow_unused=True))
    return tuple(next(found) if need and k < len(inputs) else None for k, need in enumerate(needed))
