"""SAF: similarity attention filtration. The nodes of a pair are weighted by a learned filter and summed.

    β = ℓ1( σ( BN( W_f N + b ) ) ),   vector = ℓ2( sum_i β_i N_i ),   logit = w · vector + b

The original compares one caption with all images at a time. So in training its normalisation uses the nodes
of one caption, and the running estimates are updated once a caption. Both are reproduced here for all
captions together; `statistics="batch"` takes the statistics of the whole batch instead.

Reference: Diao et al., "Similarity Reasoning and Filtration for Image-Text Matching", AAAI 2021.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.models import BACKBONES
from sremkit.models.encoding import Encoded, in_text_order
from sremkit.models.layers.encoders import xavier_linear
from sremkit.models.layers.masking import MaskedBatchNorm
from sremkit.models.layers.similarity_nodes import NodeMatcher
from sremkit.ops.functional import EPSILON, full_precision, l2_normalize
from sremkit.ops.node_pooling import node_scores, node_sum

Statistics = Literal["caption", "batch"]


class CaptionBatchNorm(MaskedBatchNorm):
    """Batch normalisation of the nodes' scores, with statistics of each caption or of the whole batch."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__(1)
        if statistics not in ("caption", "batch"):
            raise ValueError(f"statistics must be 'caption' or 'batch', got '{statistics}'")
        self.statistics = statistics

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise `x` (n, m, l) of all images with all captions; `mask` (m, l)."""
        x = full_precision(x)
        mean, var = self.running_mean, self.running_var
        if self.training:
            over = (0, 2) if self.statistics == "caption" else (0, 1, 2)
            present = mask.expand_as(x)
            count = self.all_reduce(present.sum(dim=over, keepdim=True))  # (1, m, 1), or (1, 1, 1)
            mean = self.all_reduce(x.masked_fill(~present, 0.0).sum(dim=over, keepdim=True)) / count
            squares = (x - mean).masked_fill(~present, 0.0).square()
            var = self.all_reduce(squares.sum(dim=over, keepdim=True)) / count
            self._update_running_estimates(mean.flatten(), (var * count / (count - 1).clamp_min(1)).flatten())
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias

    @torch.no_grad()
    def _update_running_estimates(self, means: Tensor, variances: Tensor) -> None:
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
        statistics: in training, the filter is normalised over the nodes of one "caption" with all images,
            as the original does, or of the whole "batch".
    """

    PARTS = (*NodeMatcher.PARTS, "filter_weights", "unit_vectors")

    def __init__(self, *, statistics: Statistics = "caption", **options: Any) -> None:
        super().__init__(**options)
        self.filter = xavier_linear(self.similarity_width, 1)
        self.filter_norm = CaptionBatchNorm(statistics)

    def similarity_vectors(self, images: Encoded, texts: Encoded) -> Tensor:
        chunks = [
            (*node_scores(nodes, self.filter.weight, self.filter.bias), columns)
            for nodes, columns in self.node_chunks(images, texts)
        ]
        columns = [columns for *_, columns in chunks]
        max_nodes = max(nodes.mask.shape[1] for _, nodes, _ in chunks)

        def join(parts: list[Tensor]) -> Tensor:
            # Scores, unlike nodes, are small enough to be padded to the longest caption.
            if columns[0] is None:
                return parts[0]
            return in_text_order([F.pad(x, (0, max_nodes - x.shape[-1])) for x in parts], columns)

        scores = join([scores for scores, *_ in chunks])
        mask = join([nodes.mask.unsqueeze(0) for _, nodes, _ in chunks]).squeeze(0)
        weights = self.part("filter_weights")(scores, mask)  # (n, m, 1 + w)
        sums = [
            node_sum(weights if texts_at is None else weights[:, texts_at, : nodes.mask.shape[1]], nodes)
            for _, nodes, texts_at in chunks
        ]
        return self.part("unit_vectors")(in_text_order(sums, columns))

    def filter_weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        """β: weights (n, m, 1 + w) that sum to 1 over the nodes of a pair, from the scores of the nodes."""
        weights = torch.sigmoid(self.filter_norm(scores, mask)).masked_fill(~mask, 0.0)
        return weights / (weights.sum(dim=2, keepdim=True) + EPSILON)

    def unit_vectors(self, sums: Tensor) -> Tensor:
        return l2_normalize(sums)
