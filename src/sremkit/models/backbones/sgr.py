"""SGR: similarity graph reasoning. The nodes of a pair attend to each other; the global one gives the logit.

    Q = W_q N + b_q,   K = W_k N + b_k,   N ← ReLU( W_g softmax_rows(Q Kᵀ) N + b_g )        for each step

with its own weights at each step; the logit is a linear function of the global node after the last one.

Reference: Diao et al., "Similarity Reasoning and Filtration for Image-Text Matching", AAAI 2021.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sremkit.models import BACKBONES
from sremkit.models.encoding import Encoded, in_text_order
from sremkit.models.layers.encoders import check_positive, xavier_linear
from sremkit.models.layers.similarity_nodes import NodeMatcher
from sremkit.ops.graph_step import graph_step
from sremkit.ops.node_projection import Nodes


class GraphStep(nn.Module):
    """One step of reasoning over the nodes of every pair."""

    def __init__(self, sim_dim: int) -> None:
        super().__init__()
        self.query = xavier_linear(sim_dim, sim_dim)
        self.key = xavier_linear(sim_dim, sim_dim)
        self.graph = xavier_linear(sim_dim, sim_dim)

    def forward(self, nodes: Nodes, *, only_global: bool = False) -> Tensor:
        """New values of all nodes, or of the global ones: (n, m, s)."""
        output = self.graph.weight, self.graph.bias
        return graph_step(nodes, self.query_and_key(), output, only_global=only_global)

    def query_and_key(self) -> tuple[Tensor, Tensor]:
        """One layer A (s, s), c (s,) for both: softmax_rows((A N + c) Nᵀ) = softmax_rows(Q Kᵀ)."""
        # q·k = (W_q x + b_q)·(W_k y + b_k) = (W_kᵀW_q x + W_kᵀb_q)·y + a term that is the same for all y, which the
        # softmax ignores. So b_k has no effect; its gradient is 0, and distributed training needs it to be defined.
        weight = self.key.weight.T @ self.query.weight
        return weight, self.key.weight.T @ self.query.bias + 0.0 * self.key.bias


@BACKBONES.register("sgr")
class SimilarityGraphReasoning(NodeMatcher):
    """Graph reasoning over the similarities of words and whole (SGR).

    Args:
        num_steps: steps of reasoning, each with its own weights.
    """

    def __init__(self, *, num_steps: int = 3, **options: Any) -> None:
        super().__init__(**options)
        check_positive(num_steps=num_steps)
        self.steps = nn.ModuleList(GraphStep(self.similarity_width) for _ in range(num_steps))

    def similarity_vectors(self, images: Encoded, texts: Encoded) -> Tensor:
        chunks = [(self.reason(nodes), columns) for nodes, columns in self.node_chunks(images, texts)]
        return in_text_order(*zip(*chunks, strict=True))

    def reason(self, nodes: Nodes) -> Tensor:
        """The global node (n, m, s) after all steps; the last one updates it alone."""
        for step in self.steps[:-1]:
            nodes = nodes._replace(values=step(nodes))
        return self.steps[-1](nodes, only_global=True)
