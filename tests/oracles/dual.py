"""The dual encoder, one vector at a time."""

from __future__ import annotations

import math

import torch

from oracles.layers import all_pairs, l2, linear, logit_scale


def tower(w, name, x):
    mean = x.sum() / len(x)
    var = ((x - mean) ** 2).sum() / len(x)
    x = (x - mean) / torch.sqrt(var + 1e-5) * w[f"{name}.layers.0.weight"] + w[f"{name}.layers.0.bias"]
    x = linear(w, f"{name}.layers.1", x)
    x = x * (1 + torch.erf(x / math.sqrt(2))) / 2  # GELU
    return linear(w, f"{name}.layers.4", x)


def logits(w, images, sentences):
    vectors = [tower(w, "image_tower", sum(image) / len(image)) for image in images]
    texts = [tower(w, "text_tower", sentence) for sentence in sentences]
    return all_pairs(vectors, texts, lambda v, t: logit_scale(w, (l2(v) * l2(t)).sum()))
