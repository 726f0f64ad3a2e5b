"""Reference loops to compare speed with: one caption against all images at a time, or one caption against one image.

Public code of these backbones loops over captions, repeats each caption for every image and materialises every
intermediate tensor. The loop over pairs is the formula as written. Both use a backbone's own weights and return the
logits of its `compare`. Like the public code they need images with equal numbers of regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.models import Encoded, Matcher
from sremkit.models.backbones.imram import IterativeMatching
from sremkit.models.backbones.saf import SimilarityAttentionFiltration
from sremkit.models.backbones.scan import Scan
from sremkit.models.backbones.sgr import GraphStep, SimilarityGraphReasoning
from sremkit.models.layers.similarity_nodes import NodeMatcher


class Images(NamedTuple):
    """A group of images that is compared with a caption in one go."""

    regions: Tensor  # (n, r, d)
    pooled: Tensor | None  # (n, d)


class Caption(NamedTuple):
    words: Tensor  # (w, d), without padding
    pooled: Tensor | None  # (d,)


def caption_loop(matcher: Matcher, images: Encoded, texts: Encoded) -> Tensor:
    """Logits (n, m): each caption with all images."""
    return _loop(matcher, [Images(images.parts()[0], images.pooled)], texts)


def pair_loop(matcher: Matcher, images: Encoded, texts: Encoded) -> Tensor:
    """Logits (n, m): each caption with each image."""
    regions = images.parts()[0].split(1)  # split once: the gradient of an index is as large as the whole tensor
    pooled = [None] * len(regions) if images.pooled is None else images.pooled.split(1)
    return _loop(matcher, [Images(*image) for image in zip(regions, pooled, strict=True)], texts)


def has_loop(backbone: str) -> bool:
    """Whether public code loops for this backbone; the others compare one vector with one vector."""
    return backbone in _COLUMN


def _loop(matcher: Matcher, groups: Sequence[Images], texts: Encoded) -> Tensor:
    words, mask = texts.parts()
    captions = [own[: int(count)] for own, count in zip(words.unbind(), mask.sum(dim=1), strict=True)]
    pooled = [None] * len(captions) if texts.pooled is None else texts.pooled.unbind()
    column = _COLUMN[matcher.name]
    columns = [column(matcher, groups, Caption(*caption)) for caption in zip(captions, pooled, strict=True)]
    return torch.stack(columns, dim=1)


def _by_group(of_group: Callable[..., Tensor], matcher: Matcher, groups: Sequence[Images], text: Caption) -> Tensor:
    return torch.cat([of_group(matcher, group, text) for group in groups])  # (n,)


def _l2(x: Tensor, dim: int = -1) -> Tensor:
    return x / (x.pow(2).sum(dim=dim, keepdim=True).sqrt() + 1e-8)


def _attend(queries: Tensor, contexts: Tensor, scale: float) -> Tensor:
    """Attended vectors (n, l, d) of queries (n, l, d) over contexts (n, k, d)."""
    attention = F.leaky_relu(torch.bmm(contexts, queries.transpose(1, 2)), 0.1)  # (n, k, l)
    attention = _l2(attention, dim=2).transpose(1, 2)  # (n, l, k)
    return torch.bmm(F.softmax(scale * attention, dim=2), contexts)


def _repeat(caption: Caption, images: Images) -> Tensor:
    return caption.words.unsqueeze(0).repeat(len(images.regions), 1, 1)  # (n, w, d)


def _scan(matcher: Scan, images: Images, caption: Caption, *, t2i: bool) -> Tensor:
    words = _repeat(caption, images)
    queries, contexts = (words, images.regions) if t2i else (images.regions, words)
    cosines = F.cosine_similarity(queries, _attend(queries, contexts, matcher.attention_scale), dim=2)
    if matcher.aggregation == "mean":
        similarity = cosines.mean(dim=1)
    else:
        similarity = (cosines * matcher.aggregation_scale).exp().sum(dim=1).log() / matcher.aggregation_scale
    return matcher.to_logit(similarity)


def _imram(matcher: IterativeMatching, images: Images, caption: Caption) -> Tensor:
    words, regions = _repeat(caption, images), images.regions
    similarities = []
    for direction in matcher.directions:
        queries, contexts = (words, regions) if direction == "t2i" else (regions, words)
        memory = queries
        for step in range(matcher.num_steps):
            found = _attend(memory, contexts, matcher.attention_scale)
            similarities.append(F.cosine_similarity(queries, found, dim=2).mean(dim=1))
            if step + 1 < matcher.num_steps:
                cell = matcher.memory(direction)
                both = torch.cat([memory, found], dim=2)
                gate, output = torch.sigmoid(cell.gate(both)), torch.tanh(cell.output(both))
                memory = gate * memory + (1 - gate) * output
    return matcher.to_logit(torch.stack(similarities).sum(dim=0))


def _nodes(matcher: NodeMatcher, images: Images, caption: Caption) -> Tensor:
    """Similarity nodes (n, 1 + w, s): of the whole items, then of each word."""
    words = _repeat(caption, images)
    found = _l2(_attend(words, images.regions, matcher.attention_scale))
    local = _l2(matcher.local_similarity((found - words).pow(2)))  # (n, w, s)
    assert images.pooled is not None
    assert caption.pooled is not None
    pooled = _l2(matcher.global_similarity((images.pooled - caption.pooled).pow(2)))  # (n, s)
    return torch.cat([pooled.unsqueeze(1), local], dim=1)


def _sgr(matcher: SimilarityGraphReasoning, images: Images, caption: Caption) -> Tensor:
    nodes = _nodes(matcher, images, caption)
    for step in cast("list[GraphStep]", matcher.steps):
        edges = F.softmax(torch.bmm(step.query(nodes), step.key(nodes).transpose(1, 2)), dim=2)
        nodes = torch.relu(step.graph(torch.bmm(edges, nodes)))
    return matcher.score(nodes[:, 0]).squeeze(1)


def _saf(matcher: SimilarityAttentionFiltration, groups: Sequence[Images], caption: Caption) -> Tensor:
    """The batch statistics of a caption include all images, so the nodes of all groups come first."""
    nodes = torch.cat([_nodes(matcher, images, caption) for images in groups])  # (n, 1 + w, s)
    norm = matcher.filter_norm
    scores = F.batch_norm(
        matcher.filter(nodes).transpose(1, 2),
        norm.running_mean,
        norm.running_var,
        norm.weight,
        norm.bias,
        training=norm.training,
    )
    weights = torch.sigmoid(scores)  # (n, 1, 1 + w)
    weights = weights / (weights.sum(dim=2, keepdim=True) + 1e-8)
    return matcher.score(_l2(torch.bmm(weights, nodes).squeeze(1))).squeeze(1)


#: The logits (n,) of all images with one caption, by the name of the backbone.
_COLUMN: dict[str, Callable[..., Tensor]] = {
    "scan-t2i": partial(_by_group, partial(_scan, t2i=True)),
    "scan-i2t": partial(_by_group, partial(_scan, t2i=False)),
    "imram": partial(_by_group, _imram),
    "sgr": partial(_by_group, _sgr),
    "saf": _saf,
}
