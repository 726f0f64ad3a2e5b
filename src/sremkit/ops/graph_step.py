"""One step of SGR's graph reasoning: the nodes of a pair attend to each other, then a linear layer and ReLU.

    N ← ReLU( W softmax_rows( (A N + c) Nᵀ ) N + b )

A and c are the query and key layers in one, as in `GraphStep`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.ops.functional import masked_softmax
from sremkit.ops.node_projection import Nodes
from sremkit.ops.packing import Packing, pack_nodes, pad_nodes


def graph_step(
    nodes: Nodes, query: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor], *, only_global: bool = False
) -> Tensor:
    """New values of all nodes, in their layout, or of the global nodes: (n, k, s).

    Args:
        query: A (s, s) and c (s,)
        output: W (s, s) and b (s,)
    """
    if nodes.packing is not None:
        from sremkit.ops.triton.graph_step import packed_self_attention, relu_linear

        attended = packed_self_attention(nodes.values, *query, nodes.packing, only_global=only_global)
        return relu_linear(attended, *output)
    attended = self_attention(nodes.values, nodes.mask, *query, num_queries=1 if only_global else None)
    updated = relu_linear_reference(attended, *output)
    return updated.squeeze(2) if only_global else updated


def self_attention(
    nodes: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, *, num_queries: int | None = None
) -> Tensor:
    """What the first `num_queries` nodes (n, m, l, s), or all, attend to: (n, m, num_queries, s); `mask` (m, l)."""
    queries = F.linear(nodes[:, :, :num_queries], weight, bias)
    edges = masked_softmax(queries @ nodes.to(queries.dtype).transpose(2, 3), mask.unsqueeze(1), dim=3)
    return edges @ nodes


def packed_self_attention_reference(
    nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, only_global: bool = False
) -> Tensor:
    """`self_attention` of packed nodes (n, m + W + ..., s): of all, or of the global ones, (n, m, s)."""
    values, mask = pad_nodes(nodes, packing), packing.node_mask()
    if only_global:
        return self_attention(values, mask, weight, bias, num_queries=1).squeeze(2)
    attended = pack_nodes(self_attention(values, mask, weight, bias), packing)
    return F.pad(attended, (0, 0, 0, nodes.shape[1] - packing.num_nodes))


def relu_linear_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU(W x + b) of rows `x` (..., s)."""
    return torch.relu(F.linear(x, weight, bias))
