"""SCAN: each word with the image regions it attends to, or each region with the words.

    S(image, text) = aggregate_l cos(w_l, c_l),   c_l the attended vector of word l   (see attention.py)

aggregated by LogSumExp, (1/λ) log sum_l exp(λ r_l), or by the mean. Here the logit is scale · S + bias.

By kernels all texts are compared at once, without padding; else in chunks of texts of like length (attended.py).

Reference: Lee et al., "Stacked Cross Attention for Image-Text Matching", ECCV 2018.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES
from sremkit.models.attended import (
    Queries,
    all_queries,
    attend_and_compare,
    kernels_hold,
    kernels_serve,
    packed_queries,
)
from sremkit.models.attention import affinities, gram_matrix
from sremkit.models.chunks import in_first_order, item_slices, length_chunks
from sremkit.models.encoders import RegionEncoder, WordEncoder, check_positive
from sremkit.models.masking import masked_mean
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import LearnedLogit, full_precision, without_autocast

Aggregation = Literal["logsumexp", "mean"]


class Scan(Matcher):
    """What both directions share: the encoders, the aggregation and the learned logit."""

    recordable = True

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int,
        embed_size: int,
        word_dim: int,
        attention_scale: float,
        aggregation: Aggregation,
        aggregation_scale: float,
        scale: float,
        neutral: float,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size, word_dim=word_dim)
        if aggregation not in ("logsumexp", "mean"):
            raise ValueError(f"aggregation must be 'logsumexp' or 'mean', got '{aggregation}'")
        self.attention_scale = attention_scale
        self.aggregation = aggregation
        self.aggregation_scale = aggregation_scale
        self.regions = RegionEncoder(image_dim, embed_size)
        self.words = WordEncoder(vocab_size, word_dim, embed_size)
        self.to_logit = LearnedLogit(scale=scale, neutral=neutral)

    def encode_images(self, batch: Batch) -> Encoded:
        return self.regions(batch)

    def encode_texts(self, batch: Batch) -> Encoded:
        return self.words(batch)

    def kernels_hold(self, batch: Batch) -> bool:
        return kernels_hold(batch)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return 6 * images.parts()[1].shape[1] * texts.parts()[1].shape[1]

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        asking, asked = self.roles(images, texts)
        if kernels_serve(asking, asked):
            queries, contexts = packed_queries(asking), asked.parts()[0]
            some = item_slices(contexts, floats_per_item=6 * contexts.shape[1] * len(queries.rows))
            similarity = torch.cat([self.ask(queries, asked[items]) for items in some])
            return self.to_logit(similarity if asked is images else similarity.T)
        images = images.trimmed()
        num_regions = images.parts()[1].numel()
        parts, columns = [], []
        for chunk in length_chunks(texts, floats_per_word=4 * num_regions):
            asking, asked = self.roles(images, chunk.texts)
            similarity = self.ask(all_queries(asking), asked)
            parts.append(similarity if asked is images else similarity.T)
            columns.append(chunk.columns)
        return self.to_logit(in_first_order(parts, columns))

    def roles(self, images: Encoded, texts: Encoded) -> tuple[Encoded, Encoded]:
        """Who asks, and whose parts are looked at."""
        raise NotImplementedError

    def ask(self, queries: Queries, asked: Encoded) -> Tensor:
        """S of all who are asked with all who ask: (c, q), in full precision throughout."""
        contexts, context_mask = asked.parts()
        with without_autocast(contexts):
            contexts = full_precision(contexts)
            affinity = affinities(queries.rows, contexts)  # (c, k, Q)
            gram = gram_matrix(contexts)
            found = attend_and_compare(
                affinity, affinity, queries, gram, context_mask=context_mask, scale=self.attention_scale
            )
            return self.aggregate(*queries.by_item(found.cosines))

    def aggregate(self, cosines: Tensor, mask: Tensor) -> Tensor:
        """One similarity from the cosines (..., l) of the present queries."""
        if self.aggregation == "mean":
            return masked_mean(cosines, mask, dim=-1)
        scaled = (self.aggregation_scale * cosines).masked_fill(~mask, -math.inf)
        return torch.logsumexp(scaled, dim=-1) / self.aggregation_scale


@BACKBONES.register("scan-t2i")
class ScanTextToImage(Scan):
    """SCAN, words attend to regions; LogSumExp or mean over the words.

    Args:
        attention_scale: sharpness of the attention (λ1).
        aggregation_scale: sharpness of LogSumExp (λ2).
        scale: starting slope from similarity to logit.
        neutral: similarity whose logit starts at 0. LogSumExp over some 14 words lies log(14)/6 = 0.44
            above a typical cosine.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        attention_scale: float = 9.0,
        aggregation: Aggregation = "logsumexp",
        aggregation_scale: float = 6.0,
        scale: float = 10.0,
        neutral: float | None = None,
    ) -> None:
        if neutral is None:
            neutral = 0.5 + (math.log(14) / aggregation_scale if aggregation == "logsumexp" else 0.0)
        super().__init__(
            vocab_size=vocab_size,
            image_dim=image_dim,
            embed_size=embed_size,
            word_dim=word_dim,
            attention_scale=attention_scale,
            aggregation=aggregation,
            aggregation_scale=aggregation_scale,
            scale=scale,
            neutral=neutral,
        )

    def roles(self, images: Encoded, texts: Encoded) -> tuple[Encoded, Encoded]:
        return texts, images


@BACKBONES.register("scan-i2t")
class ScanImageToText(Scan):
    """SCAN, regions attend to words; LogSumExp or mean over the regions.

    Args:
        attention_scale: sharpness of the attention (λ1).
        aggregation_scale: sharpness of LogSumExp (λ2): 5 for Flickr30K, 20 for MS-COCO.
        scale: starting slope from similarity to logit.
        neutral: similarity whose logit starts at 0. LogSumExp over 36 regions lies log(36)/5 = 0.72 above
            a typical cosine.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        attention_scale: float = 4.0,
        aggregation: Aggregation = "logsumexp",
        aggregation_scale: float = 5.0,
        scale: float = 10.0,
        neutral: float | None = None,
    ) -> None:
        if neutral is None:
            neutral = 0.5 + (math.log(36) / aggregation_scale if aggregation == "logsumexp" else 0.0)
        super().__init__(
            vocab_size=vocab_size,
            image_dim=image_dim,
            embed_size=embed_size,
            word_dim=word_dim,
            attention_scale=attention_scale,
            aggregation=aggregation,
            aggregation_scale=aggregation_scale,
            scale=scale,
            neutral=neutral,
        )

    def roles(self, images: Encoded, texts: Encoded) -> tuple[Encoded, Encoded]:
        return images, texts
