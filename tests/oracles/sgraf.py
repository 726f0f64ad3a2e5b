"""SGR, SAF and their mean: one caption against all images at a time, one pair at a time inside."""

from __future__ import annotations

import torch

from oracles.layers import EPS, BatchNorm, l2, linear, region_vectors, softmax, statistics, word_vectors
from oracles.scan import attended, attention


def pooled(w, name, parts, local_parts, mean_part):
    scores = torch.stack([linear(w, f"{name}.weight", x * mean_part)[0] for x in local_parts])
    weights = softmax(scores)
    return l2(sum(weights[k] * parts[k] for k in range(len(parts))))


def image_globals(w, regions, *, training):
    """Global vectors of all images of the batch; channel k of the local norm is region k."""
    name = "region_attention"
    local_norm = BatchNorm(w, f"{name}.local_norm", training=training)
    mean_norm = BatchNorm(w, f"{name}.mean_norm", training=training)
    raw = [torch.stack([linear(w, f"{name}.local", v) for v in image]) for image in regions]
    local = [[None] * len(image) for image in regions]
    for k in range(max(len(image) for image in regions)):
        owners = [i for i, image in enumerate(regions) if len(image) > k]
        normed = local_norm(k, torch.cat([raw[i][k] for i in owners])).split(raw[0].shape[1])
        for i, values in zip(owners, normed, strict=True):
            local[i][k] = torch.tanh(values)
    means = torch.stack([linear(w, f"{name}.mean", sum(image) / len(image)) for image in regions])
    columns = [mean_norm(c, means[:, c]) for c in range(means.shape[1])]
    mean_parts = torch.tanh(torch.stack(columns, dim=1))
    vectors = [pooled(w, name, v, part, g) for v, part, g in zip(regions, local, mean_parts, strict=True)]
    return vectors, local_norm, mean_norm


def text_global(w, words):
    local = [torch.tanh(linear(w, "word_attention.local", x)) for x in words]
    mean = torch.tanh(linear(w, "word_attention.mean", sum(words) / len(words)))
    return pooled(w, "word_attention", words, local, mean)


def nodes(w, regions, words, image_global, text_global_vector, attention_scale):
    """[s_0, s_1, ...] of one pair: (1 + words, s)."""
    rows = [l2(linear(w, "global_similarity", (image_global - text_global_vector) ** 2))]
    for word, weights in zip(words, attention(words, regions, attention_scale), strict=True):
        found = l2(attended(weights, regions))
        rows.append(l2(linear(w, "local_similarity", (found - word) ** 2)))
    return torch.stack(rows)


def reasoned(w, n, num_steps):
    for step in range(num_steps):
        queries = torch.stack([linear(w, f"steps.{step}.query", x) for x in n])
        keys = torch.stack([linear(w, f"steps.{step}.key", x) for x in n])
        edges = torch.stack([softmax(keys @ q) for q in queries])
        n = torch.stack([torch.relu(linear(w, f"steps.{step}.graph", x)) for x in edges @ n])
    return n[0]


class FilterNorm:
    """SAF's normalisation, fed with the nodes of one caption after the other."""

    def __init__(self, w, *, training):
        self.w, self.training = w, training
        self.running_mean = w["filter_norm.running_mean"].clone()
        self.running_var = w["filter_norm.running_var"].clone()

    def __call__(self, values):
        mean, var = self.running_mean.clone(), self.running_var.clone()
        if self.training:
            mean, var, unbiased = statistics(values)
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
            self.running_var = 0.9 * self.running_var + 0.1 * unbiased.detach()
        return (values - mean) / torch.sqrt(var + 1e-5) * self.w["filter_norm.weight"] + self.w["filter_norm.bias"]


def filtered(n, numbers):
    kept = torch.sigmoid(numbers)
    kept = kept / (kept.sum() + EPS)
    return l2(sum(kept[i] * n[i] for i in range(len(n))))


def logits(w, images, captions, *, module, attention_scale=9.0, num_steps=3, training=False, statistics_of="caption"):
    """Logits and the normalisations whose running estimates moved. `module` is "sgr" or "saf"."""
    regions = [region_vectors(w, image) for image in images]
    image_vectors, local_norm, mean_norm = image_globals(w, regions, training=training)
    norms = {"region_attention.local_norm": local_norm, "region_attention.mean_norm": mean_norm}
    all_nodes = []
    for caption in captions:
        words = word_vectors(w, caption)
        whole = text_global(w, words)
        all_nodes.append(
            [nodes(w, v, words, g, whole, attention_scale) for v, g in zip(regions, image_vectors, strict=True)]
        )
    if module == "sgr":
        vectors = [[reasoned(w, n, num_steps) for n in of_caption] for of_caption in all_nodes]
    else:
        norms["filter_norm"] = filter_norm = FilterNorm(w, training=training)
        vectors = filter_all(w, all_nodes, filter_norm, statistics_of)
    columns = [torch.stack([linear(w, "score", x)[0] for x in of_caption]) for of_caption in vectors]
    return torch.stack(columns, dim=1), norms


def filter_all(w, all_nodes, norm, statistics_of):
    """The filtered vector of every pair; the norm sees one caption at a time, or all captions at once."""
    groups = [[j] for j in range(len(all_nodes))] if statistics_of == "caption" else [list(range(len(all_nodes)))]
    vectors = [None] * len(all_nodes)
    for group in groups:
        pairs = [n for j in group for n in all_nodes[j]]
        raw = torch.cat([torch.stack([linear(w, "filter", x)[0] for x in n]) for n in pairs])
        normed = norm(raw).split([len(n) for n in pairs])
        done = [filtered(n, numbers) for n, numbers in zip(pairs, normed, strict=True)]
        num_images = len(all_nodes[0])
        for place, j in enumerate(group):
            vectors[j] = done[place * num_images : (place + 1) * num_images]
    return vectors


def mean_logits(sgr_logits, saf_logits):
    """The logit of the mean of two sigmoids, as one would write it down."""
    mean = (1 / (1 + torch.exp(-sgr_logits)) + 1 / (1 + torch.exp(-saf_logits))) / 2
    return torch.log(mean / (1 - mean))
