"""The yardstick: one caption against all images at a time, as the field's public codes compare.

Each function takes a backbone's own weights and gives the same logits as its `compare`, only with a Python
loop over captions, repeated captions, and every intermediate made in full. Like those codes it knows only
images with the same number of regions.
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


def _l2(x: Tensor, dim: int = -1) -> Tensor:
    return x / (x.pow(2).sum(dim=dim, keepdim=True).sqrt() + 1e-8)


def _attended(queries: Tensor, contexts: Tensor, scale: float) -> Tensor:
    """Attended vectors (n, l, d) of queries (n, l, d) over contexts (n, k, d)."""
    attention = F.leaky_relu(torch.bmm(contexts, queries.transpose(1, 2)), 0.1)  # (n, k, l)
    attention = _l2(attention, dim=2).transpose(1, 2)  # (n, l, k)
    return torch.bmm(F.softmax(scale * attention, dim=2), contexts)


def _captions(texts: Encoded) -> list[Tensor]:
    words, mask = texts.parts()
    return [words[j, : int(mask[j].sum())] for j in range(len(words))]


def _repeated(caption: Tensor, images: Encoded) -> Tensor:
    return caption.unsqueeze(0).repeat(len(images), 1, 1)  # (n, w, d)


def _aggregate(matcher: Scan, cosines: Tensor) -> Tensor:
    if matcher.aggregation == "mean":
        return cosines.mean(dim=1)
    return (cosines * matcher.aggregation_scale).exp().sum(dim=1).log() / matcher.aggregation_scale


def scan_t2i(matcher: Scan, images: Encoded, texts: Encoded) -> Tensor:
    regions, columns = images.parts()[0], []
    for caption in _captions(texts):
        words = _repeated(caption, images)
        found = _attended(words, regions, matcher.attention_scale)
        columns.append(_aggregate(matcher, F.cosine_similarity(words, found, dim=2)))
    return matcher.to_logit(torch.stack(columns, dim=1))


def scan_i2t(matcher: Scan, images: Encoded, texts: Encoded) -> Tensor:
    regions, columns = images.parts()[0], []
    for caption in _captions(texts):
        found = _attended(regions, _repeated(caption, images), matcher.attention_scale)
        columns.append(_aggregate(matcher, F.cosine_similarity(regions, found, dim=2)))
    return matcher.to_logit(torch.stack(columns, dim=1))


def imram(matcher: IterativeMatching, images: Encoded, texts: Encoded) -> Tensor:
    regions, columns = images.parts()[0], []
    for caption in _captions(texts):
        words = _repeated(caption, images)
        asked = {"text": [("text", words, regions)], "image": [("image", regions, words)]}
        asked["full"] = asked["text"] + asked["image"]
        columns.append(torch.stack([_ask(matcher, *sides) for sides in asked[matcher.direction]]).sum(dim=0))
    return matcher.to_logit(torch.stack(columns, dim=1))


def _ask(matcher: IterativeMatching, side: str, queries: Tensor, contexts: Tensor) -> Tensor:
    memory, similarities = queries, []
    for step in range(matcher.num_steps):
        found = _attended(memory, contexts, matcher.attention_scale)
        similarities.append(F.cosine_similarity(queries, found, dim=2).mean(dim=1))
        if step + 1 < matcher.num_steps:
            cell = matcher.memory_of(side)
            both = torch.cat([memory, found], dim=2)
            gate, output = torch.sigmoid(cell.gate(both)), torch.tanh(cell.output(both))
            memory = gate * memory + (1 - gate) * output
    return torch.stack(similarities).sum(dim=0)


def _nodes(matcher: NodeMatcher, images: Encoded, caption: Tensor, whole: Tensor) -> Tensor:
    words = _repeated(caption, images)
    found = _l2(_attended(words, images.parts()[0], matcher.attention_scale))
    local = _l2(matcher.local_similarity((found - words).pow(2)))  # (n, w, s)
    whole_similarity = _l2(matcher.global_similarity((images.whole() - whole).pow(2)))  # (n, s)
    return torch.cat([whole_similarity.unsqueeze(1), local], dim=1)


def sgr(matcher: SimilarityGraphReasoning, images: Encoded, texts: Encoded) -> Tensor:
    columns = []
    for caption, whole in zip(_captions(texts), texts.whole(), strict=True):
        nodes = _nodes(matcher, images, caption, whole)  # (n, 1 + w, s)
        for step in cast("list[GraphStep]", matcher.steps):
            edges = F.softmax(torch.bmm(step.query(nodes), step.key(nodes).transpose(1, 2)), dim=2)
            nodes = torch.relu(step.graph(torch.bmm(edges, nodes)))
        columns.append(matcher.score(nodes[:, 0]).squeeze(1))
    return torch.stack(columns, dim=1)


def saf(matcher: SimilarityAttentionFiltration, images: Encoded, texts: Encoded) -> Tensor:
    norm, columns = matcher.filter_norm, []
    for caption, whole in zip(_captions(texts), texts.whole(), strict=True):
        nodes = _nodes(matcher, images, caption, whole)  # (n, 1 + w, s)
        tells = F.batch_norm(
            matcher.filter(nodes).transpose(1, 2),
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            training=norm.training,
        )
        weights = torch.sigmoid(tells)  # (n, 1, 1 + w)
        weights = weights / (weights.sum(dim=2, keepdim=True) + 1e-8)
        vectors = _l2(torch.bmm(weights, nodes).squeeze(1))
        columns.append(matcher.score(vectors).squeeze(1))
    return torch.stack(columns, dim=1)


#: Backbones whose public codes loop over captions. The others compare one vector with one vector.
LOOPS: dict[str, Callable[..., Tensor]] = {
    "scan-t2i": scan_t2i,
    "scan-i2t": scan_i2t,
    "imram": imram,
    "sgr": sgr,
    "saf": saf,
}
