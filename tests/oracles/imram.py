"""IMRAM, one image and one caption at a time."""

from __future__ import annotations

import torch

from oracles.layers import all_pairs, cosine, l2, linear, logit_scale, region_vectors, word_vectors
from oracles.scan import attended, attention


def summed_cosines(w, modality, queries, contexts, *, num_steps, attention_scale, unit_memory):
    memory, total = list(queries), 0.0
    for step in range(num_steps):
        found = [attended(a, contexts) for a in attention(memory, contexts, attention_scale)]
        cosines = [cosine(q, c) for q, c in zip(queries, found, strict=True)]
        total = total + sum(cosines) / len(cosines)
        if step + 1 == num_steps:
            break
        updated = []
        for q, c in zip(memory, found, strict=True):
            both = torch.cat([q, c])
            gate = torch.sigmoid(linear(w, f"memories.{modality}.gate", both))
            output = torch.tanh(linear(w, f"memories.{modality}.output", both))
            new = gate * q + (1 - gate) * output
            updated.append(l2(new) if unit_memory else new)
        memory = updated
    return total


def logits(w, images, captions, *, direction, num_steps, attention_scale, unit_memory):
    regions = [region_vectors(w, image) for image in images]
    words = [word_vectors(w, caption) for caption in captions]
    options = {"num_steps": num_steps, "attention_scale": attention_scale, "unit_memory": unit_memory}

    def compare(v, t):
        s = 0.0
        if direction in ("text", "full"):
            s = s + summed_cosines(w, "text", t, v, **options)
        if direction in ("image", "full"):
            s = s + summed_cosines(w, "image", v, t, **options)
        return logit_scale(w, s)

    return all_pairs(regions, words, compare)
