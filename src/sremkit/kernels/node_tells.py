"""What every node of every pair tells: one number a node, padded to the longest caption.

    tells_jk = f · x_k + b,   over the nodes k of caption j

Whoever weights nodes by what they tell reads the nodes twice, and autograd would add two gradients as large as the
nodes. So the nodes are handed on: who sums them takes them from here, and the gradient of that sum comes
back through here, where what the numbers contribute is added to it in the same pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.kernels.language import block, jit, tl
from sremkit.kernels.packing import Packing, padded
from sremkit.kernels.tails import clear_tail
from sremkit.kernels.twice import recorded_gradients

# A program is a single warp, whose threads hold whole columns: sums over nodes wait for nobody.
_WARPS = 1
_ROWS, _ROWS_BACK = 8, 4  # backwards there is more to hold for each
_IMAGES = 4  # of a program in the backward pass, whose part in the weight's gradient is one row


def node_tells(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """Numbers (n, m, 1 + longest) in float32, by kernels, 0 where a caption has no node; and the nodes again.

    Args:
        nodes: (n, m + W, s)
        weight: (1, s)
        bias: (1,)
    """
    return _NodeTells.apply(nodes, weight, bias, packing)


def plain_node_tells(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> Tensor:
    """The same numbers in plain PyTorch."""
    return padded(nodes.to(weight.dtype) @ weight[0] + bias, packing)


@jit(do_not_specialize=["num_texts", "num_nodes", "widest"])
def tell(
    nodes, weight, bias, out, starts, num_texts, num_nodes, widest, sim_dim,
    ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program, ROWS nodes at a time."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, SIM)
    has_sim = s < sim_dim
    first = tl.load(starts + text)
    count = 1 + tl.load(starts + text + 1) - first
    f = tl.load(weight + s, mask=has_sim, other=0.0).to(tl.float32)
    b = tl.load(bias).to(tl.float32)
    pair = image * num_texts + text
    start = 0
    while start < widest:
        k = start + tl.arange(0, ROWS)
        has_node = k < count
        row = tl.where(k == 0, text, num_texts + first + k - 1)
        x = tl.load(
            nodes + (image * num_nodes + row)[:, None] * sim_dim + s[None, :],
            mask=has_node[:, None] & has_sim[None, :],
            other=0.0,
        )
        told = tl.sum(x.to(tl.float32) * f[None, :], axis=1) + b
        tl.store(out + pair * widest + k, tl.where(has_node, told, 0.0), mask=k < widest)
        start += ROWS


@jit(do_not_specialize=["num_texts", "num_nodes", "widest", "num_images"])
def tell_back(
    by_tells, upstream, nodes, weight, by_nodes, by_weight, by_bias, starts,
    num_texts, num_nodes, widest, num_images, sim_dim,
    HANDED_ON: tl.constexpr, IMAGES: tl.constexpr, ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Backward: IMAGES images and one caption a program.

    `upstream` is the gradient of the nodes that were handed on, if anybody took them.
    """
    text = tl.program_id(0)
    s = tl.arange(0, SIM)
    has_sim = s < sim_dim
    first = tl.load(starts + text)
    count = 1 + tl.load(starts + text + 1) - first
    f = tl.load(weight + s, mask=has_sim, other=0.0).to(tl.float32)
    by_f = tl.full((ROWS, SIM), 0.0, tl.float32)  # added up over its rows once, at the end
    by_b = tl.full((ROWS,), 0.0, tl.float32)
    for step in range(0, IMAGES):
        image = tl.program_id(1).to(tl.int64) * IMAGES + step
        start = 0
        while start < count:
            k = start + tl.arange(0, ROWS)
            has_node = (k < count) & (image < num_images)
            row = tl.where(k == 0, text, num_texts + first + k - 1)
            places = (image * num_nodes + row)[:, None] * sim_dim + s[None, :]
            mask = has_node[:, None] & has_sim[None, :]
            pair = image * num_texts + text
            d = tl.load(by_tells + pair * widest + k, mask=has_node, other=0.0)
            x = tl.load(nodes + places, mask=mask, other=0.0).to(tl.float32)
            by_x = d[:, None] * f[None, :]
            if HANDED_ON:
                by_x += tl.load(upstream + places, mask=mask, other=0.0).to(tl.float32)
            tl.store(by_nodes + places, by_x.to(by_nodes.dtype.element_ty), mask=mask)
            by_f += d[:, None] * x
            by_b += d
            start += ROWS
    part = (tl.program_id(1) * num_texts + text).to(tl.int64)
    tl.store(by_weight + part * sim_dim + s, tl.sum(by_f, axis=0), mask=has_sim)
    tl.store(by_bias + part, tl.sum(by_b, axis=0))


class _NodeTells(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor]:
        x = nodes.contiguous()
        out = x.new_empty(len(x), packing.num_texts, 1 + packing.longest, dtype=torch.float32)
        if out.numel():
            tell[(packing.num_texts, len(x))](
                x, weight.contiguous(), bias, out, packing.starts,
                packing.num_texts, x.shape[1], 1 + packing.longest, x.shape[2],
                ROWS=_ROWS, SIM=block(x.shape[2]), num_warps=_WARPS, num_stages=1,
            )  # fmt: skip
        ctx.save_for_backward(nodes, weight, bias)
        ctx.packing = packing
        ctx.set_materialize_grads(False)
        return out, nodes

    @staticmethod
    def backward(
        ctx: Any, by_tells: Tensor | None, upstream: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        nodes, weight, bias = ctx.saved_tensors
        packing = ctx.packing
        if by_tells is None:
            return upstream, None, None, None
        if torch.is_grad_enabled():
            by_nodes, by_weight, by_bias = recorded_gradients(
                lambda x, f, b: plain_node_tells(x, f, b, packing),
                (nodes, weight, bias),
                by_tells,
                ctx.needs_input_grad[:3],
            )
            if by_nodes is not None and upstream is not None:
                by_nodes = by_nodes + upstream
            return by_nodes, by_weight, by_bias, None
        x, f, d = nodes.contiguous(), weight.contiguous(), by_tells.float().contiguous()
        up = x if upstream is None else upstream.contiguous()
        by_x = torch.empty_like(x)
        (n, num_nodes, sim_dim), m = x.shape, packing.num_texts
        groups = -(-n // _IMAGES)
        weight_parts, bias_parts = d.new_empty(groups * m, sim_dim), d.new_empty(groups * m)
        if x.numel():
            tell_back[(m, groups)](
                d, up, x, f, by_x, weight_parts, bias_parts, packing.starts,
                m, num_nodes, 1 + packing.longest, n, sim_dim,
                HANDED_ON=upstream is not None, IMAGES=_IMAGES, ROWS=_ROWS_BACK,
                SIM=block(sim_dim), num_warps=_WARPS, num_stages=1,
            )  # fmt: skip
            clear_tail(packing, by_x)
        by_weight = weight_parts.sum(dim=0, keepdim=True).to(weight.dtype)
        return by_x, by_weight, bias_parts.sum(dim=0, keepdim=True).to(bias.dtype), None
