"""Weighted sums of the nodes of every pair, for all images with packed captions: one read of the nodes.

out_j = sum_k weight_jk x_k,   over the nodes k of caption j
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
_ROWS, _WARPS = 8, 1


def node_sum(weights: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
    """Sums (n, m, s) in float32, by kernels.

    Args:
        weights: (n, m, 1 + longest), padded, as a few numbers may be.
        nodes: (n, m + W, s)
    """
    return _NodeSum.apply(weights, nodes, packing)


def plain_node_sum(weights: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
    """The same in plain PyTorch, over padded captions."""
    values = padded(nodes, packing)
    return (weights.unsqueeze(2) @ values.to(weights.dtype)).squeeze(2)


@jit(do_not_specialize=["num_texts", "num_nodes", "widest"])
def add_up(
    weights, nodes, out, starts, num_texts, num_nodes, widest, sim_dim,
    ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program, ROWS nodes at a time."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, SIM)
    first = tl.load(starts + text)
    count = 1 + tl.load(starts + text + 1) - first
    has_sim = s < sim_dim
    pair = image * num_texts + text
    total = tl.full((ROWS, SIM), 0.0, tl.float32)  # added up over its rows once, at the end
    start = 0
    while start < count:
        k = start + tl.arange(0, ROWS)
        has_node = k < count
        row = tl.where(k == 0, text, num_texts + first + k - 1)
        weight = tl.load(weights + pair * widest + k, mask=has_node, other=0.0)
        x = tl.load(
            nodes + (image * num_nodes + row)[:, None] * sim_dim + s[None, :],
            mask=has_node[:, None] & has_sim[None, :],
            other=0.0,
        )
        total += weight[:, None] * x.to(tl.float32)
        start += ROWS
    tl.store(out + pair * sim_dim + s, tl.sum(total, axis=0), mask=has_sim)


@jit(do_not_specialize=["num_texts", "num_nodes", "widest"])
def add_up_back(
    upstream, weights, nodes, by_weights, by_nodes, starts, num_texts, num_nodes, widest, sim_dim,
    ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Backward: by the weights, 0 where a caption has no node, and by the nodes."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, SIM)
    first = tl.load(starts + text)
    count = 1 + tl.load(starts + text + 1) - first
    has_sim = s < sim_dim
    pair = image * num_texts + text
    g = tl.load(upstream + pair * sim_dim + s, mask=has_sim, other=0.0)
    start = 0
    while start < widest:
        k = start + tl.arange(0, ROWS)
        has_node = k < count
        row = tl.where(k == 0, text, num_texts + first + k - 1)
        places = (image * num_nodes + row)[:, None] * sim_dim + s[None, :]
        mask = has_node[:, None] & has_sim[None, :]
        x = tl.load(nodes + places, mask=mask, other=0.0).to(tl.float32)
        tl.store(by_weights + pair * widest + k, tl.sum(x * g[None, :], axis=1), mask=k < widest)
        weight = tl.load(weights + pair * widest + k, mask=has_node, other=0.0)
        by_x = (weight[:, None] * g[None, :]).to(by_nodes.dtype.element_ty)
        tl.store(by_nodes + places, by_x, mask=mask)
        start += ROWS


class _NodeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
        out = nodes.new_empty(len(nodes), packing.num_texts, nodes.shape[2], dtype=torch.float32)
        tensors = (weights.float().contiguous(), nodes.contiguous(), out)
        _launch(add_up, nodes, tensors, packing)
        ctx.save_for_backward(weights, nodes)
        ctx.packing = packing
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, nodes = ctx.saved_tensors
        packing = ctx.packing
        if torch.is_grad_enabled():
            needed = ctx.needs_input_grad[:2]
            by_weights, by_nodes = recorded_gradients(
                lambda w, x: plain_node_sum(w, x, packing), (weights, nodes), upstream, needed
            )
            return by_weights, by_nodes, None
        w, x, g = weights.float().contiguous(), nodes.contiguous(), upstream.float().contiguous()
        by_w, by_x = torch.empty_like(w), torch.empty_like(x)
        _launch(add_up_back, nodes, (g, w, x, by_w, by_x), packing)
        clear_tail(packing, by_x)
        return by_w.to(weights.dtype), by_x, None


def _launch(kernel: Any, nodes: Tensor, tensors: tuple[Tensor, ...], packing: Packing) -> None:
    n, num_nodes, sim_dim = nodes.shape
    kernel[(packing.num_texts, n)](
        *tensors,
        packing.starts,
        packing.num_texts,
        num_nodes,
        1 + packing.longest,
        sim_dim,
        SIM=block(sim_dim),
        ROWS=_ROWS,
        num_warps=_WARPS,
        num_stages=1,
    )
