"""What every node of every pair tells, on a processor: one number a node.

    t = f · x + b

Whoever weights nodes by what they tell reads the nodes twice, and autograd would make two gradients as large as the
nodes and add them. As in `sremkit.kernels.node_tells` the nodes are handed on instead: the gradient of whatever is
made of them comes back through here, where what the numbers contribute is added to it in one pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.twice import recorded_gradients


def told_nodes(nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers (...), one for each of the nodes (..., s), and the nodes again.

    Args:
        weight: (1, s)
        bias: (1,)
    """
    return _ToldNodes.apply(nodes, weight, bias)


def plain_told(nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same numbers."""
    return F.linear(nodes, weight, bias).squeeze(-1)


class _ToldNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(nodes, weight, bias)
        ctx.set_materialize_grads(False)
        return nodes @ weight[0] + bias, nodes

    @staticmethod
    def backward(
        ctx: Any, by_told: Tensor | None, upstream: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if by_told is None:
            return upstream, None, None
        nodes, weight, bias = inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            by_nodes, by_weight, by_bias = recorded_gradients(
                plain_told, inputs, by_told, ctx.needs_input_grad
            )
            if by_nodes is not None and upstream is not None:
                by_nodes = by_nodes + upstream
            return by_nodes, by_weight, by_bias
        row, numbers = weight[0], by_told.unsqueeze(-1)
        by_nodes = numbers * row if upstream is None else torch.addcmul(upstream, numbers, row)
        by_weight = by_told.flatten() @ nodes.flatten(0, -2)
        return by_nodes, by_weight.unsqueeze(0), by_told.sum().view_as(bias)
