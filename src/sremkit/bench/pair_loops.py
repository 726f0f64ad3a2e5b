"""The weaker yardstick: the formulas as they are written, one image with one caption at a time.

Each function takes a backbone's own weights and gives the same logits as its `compare`, in the same number format,
with matrix products inside of a pair and Python loops over captions and images. SAF's batch statistics belong to
a caption with all of its images, so its nodes are collected by caption before they are weighed. Like the loops over
captions these know only images with the same number of regions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.models.imram import IterativeMatching
from sremkit.models.matcher import Encoded
from sremkit.models.saf import SimilarityAttentionFiltration
from sremkit.models.scan import Scan
from sremkit.models.sgr import GraphStep, SimilarityGraphReasoning
from sremkit.models.similarity_nodes import NodeMatcher

OfPair = Callable[[Tensor, Tensor], Tensor]  # a number from regions (r, d) and words (w, d)


def _l2(x: Tensor, dim: int = -1) -> Tensor:
    return x / (x.pow(2).sum(dim=dim, keepdim=True).sqrt() + 1e-8)


def _attended(queries: Tensor, contexts: Tensor, scale: float) -> Tensor:
    """What each query (l, d) attends to among the contexts (k, d): (l, d)."""
    affinity = _l2(F.leaky_relu(contexts @ queries.T, 0.1), dim=1)  # (k, l)
    return F.softmax(scale * affinity, dim=0).T @ contexts


def _captions(texts: Encoded) -> list[Tensor]:
    words, mask = texts.parts()
    return [own[: int(count)] for own, count in zip(words.unbind(), mask.sum(dim=1), strict=True)]


def _all_pairs(images: Encoded, texts: Encoded, of_pair: OfPair) -> Tensor:
    """(n, m) a number for each image with each caption."""
    captions = _captions(texts)
    return torch.stack(
        [
            torch.stack([of_pair(regions, words) for words in captions])
            for regions in images.parts()[0].unbind()
        ]
    )


def _cosine(matcher: Scan, queries: Tensor, contexts: Tensor) -> Tensor:
    found = _attended(queries, contexts, matcher.attention_scale)
    cosines = F.cosine_similarity(queries, found, dim=1)  # (l,)
    if matcher.aggregation == "mean":
        return cosines.mean()
    return (cosines * matcher.aggregation_scale).exp().sum().log() / matcher.aggregation_scale


def scan_t2i(matcher: Scan, images: Encoded, texts: Encoded) -> Tensor:
    similarity = _all_pairs(images, texts, lambda regions, words: _cosine(matcher, words, regions))
    return matcher.to_logit(similarity)


def scan_i2t(matcher: Scan, images: Encoded, texts: Encoded) -> Tensor:
    similarity = _all_pairs(images, texts, lambda regions, words: _cosine(matcher, regions, words))
    return matcher.to_logit(similarity)


def imram(matcher: IterativeMatching, images: Encoded, texts: Encoded) -> Tensor:
    def of_pair(regions: Tensor, words: Tensor) -> Tensor:
        similarity = words.new_zeros(())
        if matcher.direction in ("text", "full"):
            similarity = similarity + _ask(matcher, "text", words, regions)
        if matcher.direction in ("image", "full"):
            similarity = similarity + _ask(matcher, "image", regions, words)
        return similarity

    return matcher.to_logit(_all_pairs(images, texts, of_pair))


def _ask(matcher: IterativeMatching, side: str, queries: Tensor, contexts: Tensor) -> Tensor:
    memory, similarity = queries, queries.new_zeros(())
    for step in range(matcher.num_steps):
        found = _attended(memory, contexts, matcher.attention_scale)
        similarity = similarity + F.cosine_similarity(queries, found, dim=1).mean()
        if step + 1 < matcher.num_steps:
            cell = matcher.memory_of(side)
            both = torch.cat([memory, found], dim=1)
            gate, output = torch.sigmoid(cell.gate(both)), torch.tanh(cell.output(both))
            memory = gate * memory + (1 - gate) * output
    return similarity


Parts = tuple[Tensor, Tensor]  # regions (r, d) or words (w, d), and the whole (d,)


def _one_by_one(images: Encoded) -> list[Parts]:
    """Taken apart once: a region asked for in every pair would bring a gradient of the whole batch each time."""
    return list(zip(images.parts()[0].unbind(), images.whole().unbind(), strict=True))


def _nodes(matcher: NodeMatcher, image: Parts, caption: Parts) -> Tensor:
    """The similarity nodes (1 + w, s) of an image with a caption."""
    (regions, whole_image), (words, whole_text) = image, caption
    found = _l2(_attended(words, regions, matcher.attention_scale))
    local = _l2(matcher.local_similarity((found - words).pow(2)))  # (w, s)
    whole_similarity = _l2(matcher.global_similarity((whole_image - whole_text).pow(2)))  # (s,)
    return torch.cat([whole_similarity.unsqueeze(0), local])


def sgr(matcher: SimilarityGraphReasoning, images: Encoded, texts: Encoded) -> Tensor:
    columns, each = [], _one_by_one(images)
    for caption in zip(_captions(texts), texts.whole().unbind(), strict=True):
        column = []
        for image in each:
            nodes = _nodes(matcher, image, caption)
            for step in cast("list[GraphStep]", matcher.steps):
                edges = F.softmax(step.query(nodes) @ step.key(nodes).T, dim=1)
                nodes = torch.relu(step.graph(edges @ nodes))
            column.append(matcher.score(nodes[0]))
        columns.append(torch.cat(column))
    return torch.stack(columns, dim=1)


def saf(matcher: SimilarityAttentionFiltration, images: Encoded, texts: Encoded) -> Tensor:
    norm, columns, each = matcher.filter_norm, [], _one_by_one(images)
    for caption in zip(_captions(texts), texts.whole().unbind(), strict=True):
        nodes = [_nodes(matcher, image, caption) for image in each]
        tells = F.batch_norm(
            torch.stack([matcher.filter(of_pair).T for of_pair in nodes]),  # (n, 1, 1 + w)
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            training=norm.training,
        )
        column = []
        for i, of_pair in enumerate(nodes):
            weights = torch.sigmoid(tells[i])  # (1, 1 + w)
            weights = weights / (weights.sum() + 1e-8)
            column.append(matcher.score(_l2(weights @ of_pair)).squeeze(0))
        columns.append(torch.cat(column))
    return torch.stack(columns, dim=1)


#: The backbones of which words and regions are compared.
PAIR_LOOPS: dict[str, Callable[..., Tensor]] = {
    "scan-t2i": scan_t2i,
    "scan-i2t": scan_i2t,
    "imram": imram,
    "sgr": sgr,
    "saf": saf,
}
