"""VSE-infinity, one image and one caption at a time."""

from __future__ import annotations

import math

import torch

from oracles.layers import (
    BatchNorm,
    all_pairs,
    bidirectional_gru,
    l2,
    linear,
    logit_scale,
    normed_vectors,
    softmax,
    word_vectors,
)


def pooled(w, name, vectors, position_dim):
    """Learned weights for the largest, second largest, ... value of each channel."""
    codes = []
    for position in range(len(vectors)):
        code = []
        for k in range(position_dim):
            angle = position / 10000 ** ((k - k % 2) / position_dim)
            code.append(math.sin(angle) if k % 2 == 0 else math.cos(angle))
        codes.append(torch.tensor(code, dtype=vectors.dtype))
    hidden = bidirectional_gru(w, f"{name}.gru", codes)
    weights = softmax(torch.stack([linear(w, f"{name}.score", h)[0] for h in hidden]) / 0.1)
    channels = []
    for d in range(vectors.shape[1]):
        order = sorted(range(len(vectors)), key=lambda k, d=d: -vectors[k, d].item())
        channels.append(sum(weights[rank] * vectors[k, d] for rank, k in enumerate(order)))
    return torch.stack(channels)


def logits(w, images, captions, *, position_dim, training):
    norm = BatchNorm(w, "mlp_norm", training=training)
    hidden = [torch.stack([linear(w, "mlp_in", x) for x in image]) for image in images]
    hidden = [torch.relu(h) for h in normed_vectors(norm, hidden)]
    image_vectors = []
    for image, image_hidden in zip(images, hidden, strict=True):
        regions = [linear(w, "project", x) + linear(w, "mlp_out", h) for x, h in zip(image, image_hidden, strict=True)]
        image_vectors.append(pooled(w, "pool_regions", torch.stack(regions), position_dim))
    text_vectors = [pooled(w, "pool_words", word_vectors(w, caption, unit=False), position_dim) for caption in captions]
    return all_pairs(image_vectors, text_vectors, lambda v, t: logit_scale(w, (l2(v) * l2(t)).sum())), {
        "mlp_norm": norm
    }
