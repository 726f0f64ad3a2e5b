"""SCAN: each word with the image regions it attends to (t2i), or each region with the words (i2t).

    S(image, text) = aggregate_l cos(w_l, c_l),   c_l the attended vector of query l   (`sremkit.ops.cross_attention`)

aggregated by LogSumExp, (1/λ) log sum_l exp(λ r_l), or by the mean. Here the logit is scale · S + bias.

Reference: Lee et al., "Stacked Cross Attention for Image-Text Matching", ECCV 2018.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sremkit.models import BACKBONES
from sremkit.models.encoding import Encoded
from sremkit.models.layers.cross_attention import Contexts, CrossAttentionMatcher, Direction
from sremkit.models.layers.encoders import LogitScale
from sremkit.models.layers.masking import masked_mean
from sremkit.ops.cross_attention import Queries, affinities, attended_cosines, gram_matrix
from sremkit.ops.functional import without_autocast

Aggregation = Literal["logsumexp", "mean"]


class Scan(CrossAttentionMatcher):
    """Both directions of SCAN.

    Args:
        aggregation: of the queries' cosines.
        scale: initial slope from similarity to logit.
        neutral: similarity whose logit is initially 0. By default 0.5, and with LogSumExp over `typical_queries`
            also log(queries) / aggregation_scale, by which it exceeds a typical cosine.
    """

    direction: ClassVar[Direction]
    typical_queries: ClassVar[int]

    def __init__(
        self,
        *,
        attention_scale: float,
        aggregation_scale: float,
        aggregation: Aggregation = "logsumexp",
        scale: float = 10.0,
        neutral: float | None = None,
        **encoders: Any,
    ) -> None:
        super().__init__(**encoders)
        if aggregation not in ("logsumexp", "mean"):
            raise ValueError(f"aggregation must be 'logsumexp' or 'mean', got '{aggregation}'")
        self.attention_scale = attention_scale
        self.aggregation = aggregation
        self.aggregation_scale = aggregation_scale
        if neutral is None:
            excess = math.log(self.typical_queries) / aggregation_scale
            neutral = 0.5 + (excess if aggregation == "logsumexp" else 0.0)
        self.to_logit = LogitScale(scale=scale, neutral=neutral)

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(self.similarity(self.direction, images, texts))

    def score(self, direction: Direction, queries: Queries, contexts: Contexts) -> Tensor:
        """S of all contexts with all queries: (c, q), in full precision throughout."""
        with without_autocast(contexts.local):
            affinity = affinities(queries.rows, contexts.local)  # (c, k, Q)
            gram = gram_matrix(contexts.local)
            found = attended_cosines(affinity, affinity, queries, gram, contexts.mask, self.attention_scale)
            return self.aggregate(*queries.by_item(found.cosines))

    def aggregate(self, cosines: Tensor, mask: Tensor) -> Tensor:
        """One similarity from the cosines (..., l) of the present queries."""
        if self.aggregation == "mean":
            return masked_mean(cosines, mask, dim=-1)
        scaled = (self.aggregation_scale * cosines).masked_fill(~mask, -math.inf)
        return torch.logsumexp(scaled, dim=-1) / self.aggregation_scale

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return 6 * images.parts()[1].shape[1] * texts.parts()[1].shape[1]

    def floats_per_word(self, direction: Direction, images: Encoded) -> int:
        return 4 * images.parts()[1].numel()

    def floats_per_context(self, queries: Queries, num_contexts: int) -> int:
        return 6 * num_contexts * len(queries.rows)


@BACKBONES.register("scan-t2i")
class ScanTextToImage(Scan):
    """SCAN, words attend to regions; LogSumExp or mean over the words.

    Args:
        attention_scale: inverse temperature of the attention (λ1).
        aggregation_scale: inverse temperature of LogSumExp (λ2).
    """

    direction = "t2i"
    typical_queries = 14

    def __init__(self, *, attention_scale: float = 9.0, aggregation_scale: float = 6.0, **options: Any) -> None:
        super().__init__(attention_scale=attention_scale, aggregation_scale=aggregation_scale, **options)


@BACKBONES.register("scan-i2t")
class ScanImageToText(Scan):
    """SCAN, regions attend to words; LogSumExp or mean over the regions.

    Args:
        attention_scale: inverse temperature of the attention (λ1).
        aggregation_scale: inverse temperature of LogSumExp (λ2): 5 for Flickr30K, 20 for MS-COCO.
    """

    direction = "i2t"
    typical_queries = 36

    def __init__(self, *, attention_scale: float = 4.0, aggregation_scale: float = 5.0, **options: Any) -> None:
        super().__init__(attention_scale=attention_scale, aggregation_scale=aggregation_scale, **options)
