"""SAF: similarity attention filtration. Each node is weighted by how much it tells, and summed.

    β = ℓ1( σ( BN( W_f N + b ) ) ),   vector = ℓ2( sum_i β_i N_i ),   logit = w · vector + b

The original compares one caption with all images at a time. So in training its normalisation sees the nodes
of one caption, and the running estimates move once a caption. Both are reproduced here at once for all
captions; `statistics="batch"` takes the statistics of the whole batch instead.

Reference: Diao et al., "Similarity Reasoning and Filtration for Image-Text Matching", AAAI 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.kernels.packing import Packing
from sremkit.models import BACKBONES
from sremkit.models.chunks import in_first_order
from sremkit.models.encoders import xavier_linear
from sremkit.models.matcher import Encoded
from sremkit.models.similarity import EPSILON, full_precision, unit
from sremkit.models.similarity_nodes import NodeMatcher, Nodes, PackedNodes
from sremkit.models.telling import told_nodes
from sremkit.models.tiled_projection import can_tile

Statistics = Literal["caption", "batch"]


class CaptionBatchNorm(nn.Module):
    """Batch normalisation of one number a node, with statistics of each caption or of the whole batch."""

    #: Adds sums up over the processes that share a batch; training in several processes sets it.
    add_up: Callable[[Tensor], Tensor] = staticmethod(lambda sums: sums)
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, statistics: Statistics, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        if statistics not in ("caption", "batch"):
            raise ValueError(f"statistics must be 'caption' or 'batch', got '{statistics}'")
        self.statistics, self.momentum, self.eps = statistics, momentum, eps
        self.weight = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("running_var", torch.ones(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Normalise `x` (n, m, l) of all images with all captions; `mask` (m, l)."""
        x = full_precision(x)
        mean, var = self.running_mean, self.running_var
        if self.training:
            over = (0, 2) if self.statistics == "caption" else (0, 1, 2)
            present = mask.expand_as(x)
            count = self.add_up(present.sum(dim=over, keepdim=True))  # (1, m, 1), or (1, 1, 1)
            mean = self.add_up(x.masked_fill(~present, 0.0).sum(dim=over, keepdim=True)) / count
            var = (
                self.add_up((x - mean).masked_fill(~present, 0.0).square().sum(dim=over, keepdim=True))
                / count
            )
            self._move_estimates(mean.flatten(), (var * count / (count - 1).clamp_min(1)).flatten())
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias

    @torch.no_grad()
    def _move_estimates(self, means: Tensor, variances: Tensor) -> None:
        """All updates in the order of the captions: r ← (1-p) r + p x_j for j = 1 ... m, in closed form."""
        ages = torch.arange(len(means) - 1, -1, -1, device=means.device, dtype=means.dtype)
        weights = self.momentum * (1 - self.momentum) ** ages  # of x_j: p (1-p)^(m-j)
        kept = (1 - self.momentum) ** len(means)
        self.running_mean.mul_(kept).add_((weights * means).sum())
        self.running_var.mul_(kept).add_((weights * variances).sum())


@BACKBONES.register("saf")
class SimilarityAttentionFiltration(NodeMatcher):
    """Attention over the similarities of words and whole (SAF).

    Args:
        sim_dim: width of a similarity vector.
        num_regions: the most regions an image has; the region's index is a normalisation channel.
        attention_scale: sharpness of the words' attention to regions.
        dropout: on word embeddings and in the global attention.
        statistics: in training, the filter is normalised over the nodes of one "caption" with all images,
            as the original does, or of the whole "batch".
    """

    PARTS = (*NodeMatcher.PARTS, "filter_weights", "unit_vectors")

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        sim_dim: int = 256,
        num_regions: int = 36,
        attention_scale: float = 9.0,
        dropout: float = 0.4,
        statistics: Statistics = "caption",
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
        self.filter = xavier_linear(sim_dim, 1)
        self.filter_norm = CaptionBatchNorm(statistics)

    def similarity_vectors(self, images: Encoded, texts: Encoded) -> Tensor:
        packed = self.packed_nodes(images, texts)
        if packed is not None:
            return self._filtered(packed)
        told = [self._told(nodes) for nodes in self.nodes(images, texts)]
        chunks = [nodes for _, nodes in told]
        columns = [nodes.columns for nodes in chunks]
        widest = max(nodes.mask.shape[1] for nodes in chunks)

        def widened(x: Tensor) -> Tensor:
            return F.pad(x, (0, widest - x.shape[-1]))

        # One number a node: these, unlike the nodes, are few enough to be padded to the longest caption.
        tells = in_first_order([widened(numbers) for numbers, _ in told], columns)
        mask = in_first_order([widened(nodes.mask).unsqueeze(0) for nodes in chunks], columns).squeeze(0)
        weights = self._weights(tells, mask)
        vectors = [
            (weights[:, nodes.columns, : nodes.mask.shape[1]].unsqueeze(2) @ nodes.values).squeeze(2)
            for nodes in chunks
        ]
        return unit(in_first_order(vectors, columns))

    def _told(self, nodes: Nodes) -> tuple[Tensor, Nodes]:
        """One number a node (n, k, 1 + w), and the nodes to go on with."""
        values, layer = nodes.values, self.filter
        if not can_tile(values, layer.weight):
            return layer(values).squeeze(-1), nodes
        tells, values = told_nodes(values, layer.weight, layer.bias)
        return tells, nodes._replace(values=values)

    def _weights(self, tells: Tensor, mask: Tensor) -> Tensor:
        """Weights (n, m, 1 + w) that add up to 1 over the nodes of a pair, from one number a node."""
        weights = torch.sigmoid(self.filter_norm(tells, mask)).masked_fill(~mask, 0.0)
        return weights / (weights.sum(dim=2, keepdim=True) + EPSILON)

    def _filtered(self, nodes: PackedNodes) -> Tensor:
        """Similarity vectors (n, m, s) of packed nodes, by a kernel."""
        from sremkit.kernels.node_sum import node_sum  # imports Triton
        from sremkit.kernels.node_tells import node_tells

        packing = nodes.packing
        tells, values = node_tells(nodes.values, self.filter.weight, self.filter.bias, packing)
        weights = self.part("filter_weights")(tells, packing)
        return self.part("unit_vectors")(node_sum(weights, values, packing))

    def unit_vectors(self, sums: Tensor) -> Tensor:
        return unit(sums)

    def filter_weights(self, tells: Tensor, packing: Packing) -> Tensor:
        """Weights (n, m, 1 + w) of the nodes of packed captions, from one number a node."""
        return self._weights(tells, packing.node_mask())
