"""Layer norm followed by a linear layer, with a shorter backward pass for inputs that need no gradient.

    y = W (g ∘ x̂ + s) + c,   x̂: the input with mean 0 and variance 1

Autograd goes back through W to the layer norm's output, a product as large as the forward one, only to sum it
over the batch for the gradients of the gain g and the shift s. With u the gradient with respect to y, both
follow from the product that W's own gradient needs anyway:

    P = Σ_batch u x̂ᵀ,  t = Σ_batch u:   ∂W = P ∘ gᵀ + t sᵀ,   ∂g = Σ_rows P ∘ W,   ∂s = Wᵀ t,   ∂c = t

so that one product of three is saved where the input is data.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 64  # at a time on a CPU: a few hundred kilobytes


def normed_linear(x: Tensor, norm: nn.LayerNorm, linear: nn.Linear) -> Tensor:
    """`linear(norm(x))`, with the shorter backward pass where `x` needs no gradient."""
    if not _is_plain_data(x):
        return linear(norm(x))
    normed = F.layer_norm(x, norm.normalized_shape, eps=norm.eps)
    return NormedLinear.apply(normed, norm.weight, norm.bias, linear.weight, linear.bias)


def _is_plain_data(x: Tensor) -> bool:
    """Whether `x` are rows without gradient, outside autocast and torch.compile."""
    if x.ndim != 2 or x.requires_grad or not torch.is_grad_enabled():
        return False
    return not (torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type))


class NormedLinear(torch.autograd.Function):
    """Gain, shift and linear layer of rows (b, d) that are normalised already; the rows get no gradient."""

    @staticmethod
    def forward(normed: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(torch.addcmul(shift, normed, gain), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        normed, gain, shift, weight = ctx.saved_tensors
        product, total = upstream.T @ normed, upstream.sum(dim=0)  # (h, d), (h,)
        by_gain, by_shift = _sums_of_products(product, weight), total @ weight
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            return None, by_gain, by_shift, torch.addr(product * gain, total, shift), total
        # In place: allocating megabytes takes longer than the arithmetic.
        return None, by_gain, by_shift, product.mul_(gain).addr_(total, shift), total


def _sums_of_products(x: Tensor, y: Tensor) -> Tensor:
    """Σ_rows x ∘ y; on a CPU some rows at a time, which stay in the cache."""
    rows = _ROWS if x.device.type == "cpu" else len(x)
    chunks = zip(x.split(rows), y.split(rows), strict=True)
    return torch.stack([(a * b).sum(dim=0) for a, b in chunks]).sum(dim=0)
