"""A linear layer over all nodes, with ReLU if that is asked for.

    y = W x + b,   or   y = max(0, W x + b)

There are hundreds of thousands of nodes, and few numbers in each: products are cheap, passes over the nodes are
not. Forward, bias and ReLU belong to the product. Backward, one kernel lets through what ReLU let through and adds
up the bias's gradient on the way; the rest is two products.

Rows behind the last caption are rows like all others here: with an upstream of 0 they have no influence.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.language import block, in_format, jit, tl
from sremkit.kernels.twice import recorded_gradients

_ROWS = 16  # at a time
_ROWS_A_PROGRAM = 256


def node_linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """W x + b (..., t) of rows `x` (..., s), by kernels, in the number format of `x`.

    Args:
        weight: (t, s)
        bias: (t,)
    """
    return _NodeLinear.apply(x, weight, bias, relu)


def plain_node_linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """The same in plain PyTorch."""
    y = F.linear(x, weight, bias)
    return torch.relu(y) if relu else y


def column_sums(values: Tensor) -> Tensor:
    """Sums (s,) of all rows (..., s), in float32."""
    rows = values.flatten(0, -2).contiguous()
    return _run(rows, rows, rows, passes=False)


def gated(upstream: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The upstream of ReLU's result `out`, 0 where that is 0, as rows (..., s); and its sums (s,) in float32."""
    rows = upstream.flatten(0, -2).contiguous()
    let_through = torch.empty_like(rows)
    return let_through, _run(rows, out.flatten(0, -2).contiguous(), let_through, passes=True)


def _run(upstream: Tensor, out: Tensor, let_through: Tensor, *, passes: bool) -> Tensor:
    num_rows, width = upstream.shape
    parts = upstream.new_empty(-(-num_rows // _ROWS_A_PROGRAM), width, dtype=torch.float32)
    if parts.numel():
        add_rows[(len(parts),)](
            upstream, out, let_through, parts, num_rows, width,
            RELU=passes, ROWS=_ROWS, ROWS_A_PROGRAM=_ROWS_A_PROGRAM, WIDTH=block(width), num_warps=4, num_stages=1,
        )  # fmt: skip
    return parts.sum(dim=0)


@jit(do_not_specialize=["num_rows"])
def add_rows(
    upstream, out, let_through, parts, num_rows, width,
    RELU: tl.constexpr, ROWS: tl.constexpr, ROWS_A_PROGRAM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums of ROWS_A_PROGRAM rows; with RELU only of what passes it, which is written."""
    first = tl.program_id(0) * ROWS_A_PROGRAM
    column = tl.arange(0, WIDTH)
    total = tl.full((ROWS, WIDTH), 0.0, tl.float32)  # added up over its rows once, at the end
    for start in range(0, ROWS_A_PROGRAM, ROWS):
        row = first + start + tl.arange(0, ROWS)
        mask = (row < num_rows)[:, None] & (column < width)[None, :]
        places = row.to(tl.int64)[:, None] * width + column[None, :]
        g = tl.load(upstream + places, mask=mask, other=0.0)
        if RELU:
            y = tl.load(out + places, mask=mask, other=0.0)
            g = tl.where(y > 0, g, tl.zeros_like(g))
            tl.store(let_through + places, g, mask=mask)
        total += g.to(tl.float32)
    part = tl.program_id(0).to(tl.int64)
    tl.store(parts + part * width + column, tl.sum(total, axis=0), mask=column < width)


def product(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """W x + b of rows `x` (r, s), with ReLU as a part of the product where the device knows that."""
    if relu and x.is_cuda and hasattr(torch, "_addmm_activation"):
        return torch._addmm_activation(bias, x, weight.T, use_gelu=False)
    y = torch.addmm(bias, x, weight.T)
    return y.relu_() if relu else y


class _NodeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        w, b = in_format(x.dtype, weight, bias)
        with torch.autocast(device_type=x.device.type, enabled=False):
            out = product(x.flatten(0, -2), w, b, relu=relu).unflatten(0, x.shape[:-1])
        # Without ReLU nobody asks what came out.
        ctx.save_for_backward(x, weight, bias, *([out] if relu else []))
        ctx.relu = relu
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, *out = ctx.saved_tensors
        with torch.autocast(device_type=upstream.device.type, enabled=False):
            if torch.is_grad_enabled():
                return *recorded_gradients(
                    lambda x, w, b: plain_node_linear(x, w.to(x.dtype), b.to(x.dtype), relu=ctx.relu),
                    (x, weight, bias),
                    upstream,
                    ctx.needs_input_grad[:3],
                ), None
            if ctx.relu:
                g, by_bias = gated(upstream, out[0])
            else:
                g, by_bias = upstream.flatten(0, -2), column_sums(upstream)
            by_x = (g @ weight.to(x.dtype)).unflatten(0, x.shape[:-1]) if ctx.needs_input_grad[0] else None
            by_weight = g.T @ x.flatten(0, -2)
        return by_x, by_weight.to(weight.dtype), by_bias.to(bias.dtype), None
