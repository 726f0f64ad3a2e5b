"""SAF's pooling of the nodes of a pair: one score a node, and the weighted sum of the nodes.

    score_k = f · x_k + b,   out = sum_k weight_k x_k   over the nodes k of a pair

Nodes are read by both. Autograd would compute two gradients as large as the nodes and add them. So
`node_scores` returns its input as well: what is computed from it sends its gradient back through here, where
both are added in one pass.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sremkit.ops.node_projection import Nodes, can_tile
from sremkit.ops.packing import Packing, pad_nodes


def node_scores(nodes: Nodes, weight: Tensor, bias: Tensor) -> tuple[Tensor, Nodes]:
    """Scores (n, k, 1 + w), 0 where a packed caption has no node; and the nodes, to be used from here on."""
    values = nodes.values
    if nodes.packing is not None:
        from sremkit.ops.triton.node_pooling import packed_scores

        scores, values = packed_scores(values, weight, bias, nodes.packing)
    elif can_tile(values, weight):
        from sremkit.ops.cpu import scores_and_nodes

        scores, values = scores_and_nodes(values, weight, bias)
    else:
        scores = node_scores_reference(values, weight, bias)
    return scores, nodes._replace(values=values)


def node_sum(weights: Tensor, nodes: Nodes) -> Tensor:
    """Weighted sums (n, k, s) of the nodes of each pair; `weights` (n, k, 1 + w)."""
    if nodes.packing is not None:
        from sremkit.ops.triton.node_pooling import packed_sum

        return packed_sum(weights, nodes.values, nodes.packing)
    return node_sum_reference(weights, nodes.values)


def node_scores_reference(nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Scores (...) of nodes (..., s)."""
    return F.linear(nodes, weight, bias).squeeze(-1)


def node_sum_reference(weights: Tensor, nodes: Tensor) -> Tensor:
    """Sums (n, k, s) of nodes (n, k, l, s) with weights (n, k, l)."""
    return (weights.unsqueeze(2) @ nodes).squeeze(2)


def packed_scores_reference(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> Tensor:
    """Scores (n, m, 1 + max_seqlen) of packed nodes."""
    return pad_nodes(node_scores_reference(nodes.to(weight.dtype), weight, bias), packing)


def packed_sum_reference(weights: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
    """Sums (n, m, s) of packed nodes."""
    return node_sum_reference(weights, pad_nodes(nodes, packing).to(weights.dtype))
