"""SGR: similarity graph reasoning. Nodes pass what they know to each other; the global one decides.

    Q = W_q N + b_q,   K = W_k N + b_k,   N ← ReLU( W_g softmax_rows(Q Kᵀ) N + b_g )        for each step

with its own weights at each step; the logit is a linear function of the global node after the last one.

Reference: Diao et al., "Similarity Reasoning and Filtration for Image-Text Matching", AAAI 2021.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.kernels.packing import Packing
from sremkit.models import BACKBONES
from sremkit.models.chunks import in_first_order
from sremkit.models.encoders import check_positive, xavier_linear
from sremkit.models.masking import masked_softmax
from sremkit.models.matcher import Encoded
from sremkit.models.similarity_nodes import NodeMatcher, PackedNodes


class GraphStep(nn.Module):
    """One step of reasoning over the nodes of every pair."""

    def __init__(self, sim_dim: int) -> None:
        super().__init__()
        self.query = xavier_linear(sim_dim, sim_dim)
        self.key = xavier_linear(sim_dim, sim_dim)
        self.graph = xavier_linear(sim_dim, sim_dim)

    def forward(self, nodes: Tensor, mask: Tensor, *, num_asking: int | None = None) -> Tensor:
        """New values of the first `num_asking` nodes, or of all: (n, m, num_asking, s).

        Args:
            nodes: (n, m, l, s)
            mask: (m, l)
        """
        asking = self._asking(nodes[:, :, :num_asking])
        edges = masked_softmax(asking @ nodes.to(asking.dtype).transpose(2, 3), mask.unsqueeze(1), dim=3)
        return torch.relu(self.graph(edges @ nodes))

    def packed(self, nodes: Tensor, packing: Packing, *, only_global: bool = False) -> Tensor:
        """The same by a kernel: new values of all packed nodes (n, m + W, s), or of the global ones (n, m, s)."""
        from sremkit.kernels.node_asking import node_asking  # imports Triton
        from sremkit.kernels.node_linear import node_linear

        attended = node_asking(nodes, *self._asking_layer(), packing, only_global=only_global)
        return node_linear(attended, self.graph.weight, self.graph.bias, relu=True)

    def _asking(self, nodes: Tensor) -> Tensor:
        """What is multiplied with the nodes themselves to give the products of queries and keys."""
        return F.linear(nodes, *self._asking_layer())

    def _asking_layer(self) -> tuple[Tensor, Tensor]:
        """Weight (s, s) and bias (s,) of `_asking`."""
        # q·k = (W_q a + b_q)·(W_k c + b_k) = (W_kᵀW_q a + W_kᵀb_q)·c + what is the same for all c. The
        # softmax does not see the latter, so one product with W_kᵀW_q serves for both layers, and b_k has
        # no effect: its gradient is 0, which distributed training wants to be told.
        weight = self.key.weight.T @ self.query.weight
        return weight, self.key.weight.T @ self.query.bias + 0.0 * self.key.bias


@BACKBONES.register("sgr")
class SimilarityGraphReasoning(NodeMatcher):
    """Graph reasoning over the similarities of words and whole (SGR).

    Args:
        sim_dim: width of a similarity vector.
        num_steps: steps of reasoning, each with its own weights.
        num_regions: the most regions an image has; the region's index is a normalisation channel.
        attention_scale: sharpness of the words' attention to regions.
        dropout: on word embeddings and in the global attention.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        sim_dim: int = 256,
        num_steps: int = 3,
        num_regions: int = 36,
        attention_scale: float = 9.0,
        dropout: float = 0.4,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            image_dim=image_dim,
            embed_size=embed_size,
            word_dim=word_dim,
            sim_dim=sim_dim,
            num_regions=num_regions,
            attention_scale=attention_scale,
            dropout=dropout,
        )
        check_positive(num_steps=num_steps)
        self.steps = nn.ModuleList(GraphStep(sim_dim) for _ in range(num_steps))

    def similarity_vectors(self, images: Encoded, texts: Encoded) -> Tensor:
        packed = self.packed_nodes(images, texts)
        if packed is not None:
            return self.reason_packed(packed)
        vectors, columns = [], []
        for nodes in self.nodes(images, texts):
            vectors.append(self.reason(nodes.values, nodes.mask))
            columns.append(nodes.columns)
        return in_first_order(vectors, columns)

    def reason(self, nodes: Tensor, mask: Tensor) -> Tensor:
        """The global node (n, m, s) after all steps; in the last one only it asks."""
        for step in self.steps[:-1]:
            nodes = step(nodes, mask)
        return self.steps[-1](nodes, mask, num_asking=1).squeeze(2)

    def reason_packed(self, nodes: PackedNodes) -> Tensor:
        """The same for packed nodes."""
        values, packing = nodes
        for step in self._steps()[:-1]:
            values = step.packed(values, packing)
        return self._steps()[-1].packed(values, packing, only_global=True)

    def _steps(self) -> list[GraphStep]:
        return cast("list[GraphStep]", list(self.steps))
