"""SCAN, one image and one caption at a time."""

from __future__ import annotations

import torch

from oracles.layers import EPS, all_pairs, cosine, logit_scale, region_vectors, softmax, word_vectors


def attention(queries, contexts, scale):
    """For each query its weights over the contexts: product, leaky ReLU, norm over the queries, softmax."""
    raw = torch.stack([torch.stack([(v * q).sum() for q in queries]) for v in contexts])  # (contexts, queries)
    leaky = torch.where(raw > 0, raw, 0.1 * raw)
    normed = torch.stack([row / (torch.sqrt((row * row).sum()) + EPS) for row in leaky])
    return [softmax(scale * normed[:, q]) for q in range(len(queries))]


def attended(weights, contexts):
    return sum(weights[k] * contexts[k] for k in range(len(contexts)))


def similarity(queries, contexts, *, attention_scale, aggregation, aggregation_scale):
    weights = attention(queries, contexts, attention_scale)
    cosines = [cosine(q, attended(a, contexts)) for q, a in zip(queries, weights, strict=True)]
    if aggregation == "mean":
        return sum(cosines) / len(cosines)
    return torch.log(sum(torch.exp(aggregation_scale * r) for r in cosines)) / aggregation_scale


def logits(w, images, captions, *, t2i, attention_scale, aggregation, aggregation_scale):
    regions = [region_vectors(w, image) for image in images]
    words = [word_vectors(w, caption) for caption in captions]

    def compare(v, t):
        queries, contexts = (t, v) if t2i else (v, t)
        s = similarity(
            queries,
            contexts,
            attention_scale=attention_scale,
            aggregation=aggregation,
            aggregation_scale=aggregation_scale,
        )
        return logit_scale(w, s)

    return all_pairs(regions, words, compare)
