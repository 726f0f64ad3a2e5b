"""Nodes that ask each other, in one function: queries by a linear layer, then attention.

    q_i = A x_i + c,   out_i = sum_k softmax_k(q_i · x_k) x_k,   over the nodes k of the same image and caption

The nodes x have a part in both. As two functions each would write a gradient by the nodes, which then would have to
be added in one more pass. Here the product that goes back through A is added to what the attention's kernel wrote.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.language import in_format
from sremkit.kernels.node_attention import attend, attend_back, launch, plain_node_attention
from sremkit.kernels.node_linear import product
from sremkit.kernels.packing import Packing
from sremkit.kernels.tails import clear_tail
from sremkit.kernels.twice import recorded_gradients


def node_asking(
    nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, *, only_global: bool = False
) -> Tensor:
    """What each node attends to (n, m + W, s), or what the global ones do (n, m, s), by kernels.

    Args:
        nodes: (n, m + W, s), whose number format is that of the products and of the result.
        weight: (s, s), from nodes to queries.
        bias: (s,)
    """
    return _NodeAsking.apply(nodes, weight, bias, packing, only_global)


def plain_node_asking(
    nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, *, only_global: bool = False
) -> Tensor:
    """The same in plain PyTorch, over padded captions."""
    asking = F.linear(_who_asks(nodes, packing, only_global), weight, bias)
    return plain_node_attention(asking, nodes, packing)


def _who_asks(nodes: Tensor, packing: Packing, only_global: bool) -> Tensor:
    return nodes[:, : packing.num_texts] if only_global else nodes


class _NodeAsking(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, only_global: bool
    ) -> Tensor:
        x, a, c = in_format(nodes.dtype, nodes, weight, bias)
        asking = _who_asks(x, packing, only_global)
        with torch.autocast(device_type=x.device.type, enabled=False):
            q = product(asking.flatten(0, 1), a, c).view(asking.shape)
        out = torch.empty_like(q)
        launch(attend, q, x, (q, x, out), packing)
        if not only_global:
            clear_tail(packing, out)
        ctx.save_for_backward(nodes, weight, bias, q)
        ctx.packing, ctx.only_global = packing, only_global
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        nodes, weight, bias, q = ctx.saved_tensors
        packing, only_global = ctx.packing, ctx.only_global
        with torch.autocast(device_type=upstream.device.type, enabled=False):
            if torch.is_grad_enabled():
                return (
                    *recorded_gradients(
                        lambda x, a, c: plain_node_asking(
                            x, a.to(x.dtype), c.to(x.dtype), packing, only_global=only_global
                        ),
                        (nodes, weight, bias),
                        upstream,
                        ctx.needs_input_grad[:3],
                    ),
                    None,
                    None,
                )
            g, x, a = in_format(nodes.dtype, upstream, nodes, weight)
            by_q, by_x = torch.empty_like(q), torch.empty_like(x)
            sums = q.new_empty(len(q), packing.num_texts, q.shape[2], dtype=torch.float32)  # of by_q
            launch(attend_back, q, x, (g, q, x, by_q, by_x, sums), packing)
            if only_global:
                clear_tail(packing, by_x)
                by_x[:, : packing.num_texts].baddbmm_(by_q, a.expand(len(x), -1, -1))
            else:
                clear_tail(packing, by_q, by_x)
                by_x.flatten(0, 1).addmm_(by_q.flatten(0, 1), a)
            asked = _who_asks(x, packing, only_global).flatten(0, 1)
            by_weight = by_q.flatten(0, 1).T @ asked
        return by_x, by_weight.to(weight.dtype), sums.sum(dim=(0, 1)).to(bias.dtype), None, None
