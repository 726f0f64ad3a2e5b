"""VSRN, one image and one caption at a time."""

from __future__ import annotations

from itertools import pairwise

import torch

from oracles.layers import (
    EPS,
    BatchNorm,
    all_pairs,
    gru,
    gru_with,
    l2,
    linear,
    logit_scale,
    normed_vectors,
    softmax,
)


def unit_over_regions(regions):
    return regions / (torch.sqrt((regions * regions).sum(dim=0, keepdim=True)) + EPS)


def related_regions(w, images, *, num_layers, unit_projection, training):
    """Region vectors after reasoning, a list of (regions, d), and the norms whose estimates moved."""
    norms = {}
    regions = [torch.stack([linear(w, "project", x) for x in image]) for image in images]
    if unit_projection:
        regions = [unit_over_regions(v) for v in regions]
    for layer in range(num_layers):
        name = f"layers.{layer}"
        changes = []
        for v in regions:
            rows = []
            for a in v:
                relation = [(linear(w, f"{name}.theta", a) * linear(w, f"{name}.phi", c)).sum() for c in v]
                message = sum(r / len(v) * linear(w, f"{name}.tell", c) for r, c in zip(relation, v, strict=True))
                rows.append(linear(w, f"{name}.output", message))
            changes.append(torch.stack(rows))
        norms[f"{name}.norm"] = BatchNorm(w, f"{name}.norm", training=training)
        changes = normed_vectors(norms[f"{name}.norm"], changes)
        regions = [v + change for v, change in zip(regions, changes, strict=True)]
    return [unit_over_regions(v) for v in regions], norms


def logits(w, images, captions, *, num_layers, unit_projection, last_norm, training):
    regions, norms = related_regions(
        w, images, num_layers=num_layers, unit_projection=unit_projection, training=training
    )
    vectors = [gru(w, "region_gru", list(v))[-1] for v in regions]
    if last_norm:
        norms["last_norm"] = BatchNorm(w, "last_norm", training=training)
        vectors = list(normed_vectors(norms["last_norm"], [torch.stack(vectors)])[0])
    texts = [gru(w, "word_gru", [w["embed.weight"][k] for k in caption])[-1] for caption in captions]
    return all_pairs(vectors, texts, lambda v, t: logit_scale(w, (l2(v) * l2(t)).sum())), norms


def captioning_loss(w, regions, captions, *, max_words):
    """Negative log-likelihood of each word given those before it, summed; mean over the captions."""
    name, total = "captioner", 0.0
    cell = [w[f"{name}.writer.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    for v, caption in zip(regions, captions, strict=True):
        read = gru(w, f"{name}.reader", [linear(w, f"{name}.project", x) for x in v])
        state = read[-1]
        caption = caption[:max_words]
        for given, wanted in pairwise(caption):
            scores = torch.stack(
                [
                    linear(
                        w,
                        f"{name}.attend_score",
                        torch.tanh(linear(w, f"{name}.attend", torch.cat([h, state]))),
                    )[0]
                    for h in read
                ]
            )
            weights = softmax(scores)
            seen = sum(weights[k] * read[k] for k in range(len(read)))
            word = w[f"{name}.embed.weight"][given]
            state = gru_with(*cell, [torch.cat([word, seen])], h=state)[0]
            total = total - torch.log(softmax(linear(w, f"{name}.output", state))[wanted])
    return total / len(captions)
