"""SCAN: each word with the image regions it attends to, or each region with the words.

    S(image, text) = aggregate_l cos(w_l, c_l),   c_l the attended vector of word l   (see attention.py)

aggregated by LogSumExp, (1/λ) log sum_l exp(λ r_l), or by the mean. Here the logit is scale · S + bias.

Where words attend and the kernels are switched on, the attention comes packed and divided by the attended
vector's length, a / ‖c‖; words being unit vectors, the cosine is the sum over regions of that times s. Where regions
attend, the same kernel serves, unpacked (attended.py).

Reference: Lee et al., "Stacked Cross Attention for Image-Text Matching", ECCV 2018.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.kernels.packing import Packing, aligned, pack
from sremkit.models import BACKBONES
from sremkit.models.attended import attend_and_compare
from sremkit.models.attention import affinities, gram_matrix
from sremkit.models.chunks import in_first_order, length_chunks
from sremkit.models.encoders import RegionEncoder, WordEncoder, check_positive
from sremkit.models.masking import masked_mean
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import LearnedLogit, full_precision, without_autocast

Aggregation = Literal["logsumexp", "mean"]


class Scan(Matcher):
    """What both directions share: the encoders, the aggregation and the learned logit."""

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

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return 6 * images.parts()[1].shape[1] * texts.parts()[1].shape[1]

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        images = images.trimmed()
        num_regions = images.parts()[1].numel()
        parts, columns = [], []
        for chunk in length_chunks(texts, floats_per_word=4 * num_regions):
            parts.append(self.similarity(images, chunk.texts))
            columns.append(chunk.columns)
        return self.to_logit(in_first_order(parts, columns))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """S of every image with every text: (n, m)."""
        raise NotImplementedError

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

    recordable = True

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

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        with without_autocast(images.parts()[0]):
            packed = self.packed_similarity(images, texts)
        return super().compare(images, texts) if packed is None else self.to_logit(packed)

    def packed_similarity(self, images: Encoded, texts: Encoded) -> Tensor | None:
        """S (n, m) by kernels, or None where the kernels are switched off or do not hold such sizes."""
        (regions, region_mask), (words, word_mask) = images.parts(), texts.parts()
        regions, words = full_precision(regions), full_precision(words)
        if not kernels.uses_triton(regions):
            return None
        packing = pack(word_mask, most=texts.most_parts)
        sizes = {"num_regions": regions.shape[1], "num_nodes": packing.longest}
        if not kernels.fits(regions.dtype, **sizes, sim_dim=1):
            return None
        from sremkit.kernels.region_attention import region_attention  # imports Triton

        words = aligned(words.flatten(0, 1).index_select(0, packing.places))  # (W, d), and some more rows
        affinity = (regions.flatten(0, 1) @ words.T).unflatten(0, regions.shape[:2])  # (n, r, W)
        attention = region_attention(
            affinity, gram_matrix(regions), region_mask, packing, scale=self.attention_scale
        )
        cosines = (attention * affinity).sum(dim=1)  # (n, W)
        return self.aggregate(by_caption(cosines, packing), word_mask)

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        cosines = attended_cosines_of(queries=texts, contexts=images, scale=self.attention_scale)  # (n, m, w)
        return self.aggregate(cosines, texts.parts()[1])


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

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        cosines = attended_cosines_of(queries=images, contexts=texts, scale=self.attention_scale)  # (m, n, r)
        return self.aggregate(cosines, images.parts()[1]).T


def attended_cosines_of(*, queries: Encoded, contexts: Encoded, scale: float) -> Tensor:
    """Cosine of every query with its attended vector: (c, q, l), in full precision throughout."""
    asked, asked_mask = queries.parts()
    answering, answering_mask = contexts.parts()
    with without_autocast(asked):
        asked, answering = full_precision(asked), full_precision(answering)
        affinity = affinities(asked, answering)  # (c, k, q, l)
        masks = {"query_mask": asked_mask, "context_mask": answering_mask}
        return attend_and_compare(
            affinity, affinity, asked, gram_matrix(answering), **masks, scale=scale
        ).cosines


def by_caption(of_words: Tensor, packing: Packing) -> Tensor:
    """Numbers of packed words (n, W) as (n, m, w); where a caption has no word there is that of some other."""
    columns = torch.arange(packing.mask.shape[1], device=of_words.device)
    rows = (packing.starts[:-1].long().unsqueeze(1) + columns).clamp_max(of_words.shape[1] - 1)  # (m, w)
    return of_words.index_select(1, rows.flatten()).unflatten(1, rows.shape)
