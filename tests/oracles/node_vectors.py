"""Similarity vectors of words with images: one image, one word, one component at a time."""

from __future__ import annotations

import math


def node_vectors(attention, regions, words, weight, bias):
    """Lists [image][word] of unit vectors; attention is indexed by image, region and word."""
    found = []
    for i in range(len(regions)):
        row = []
        for place, word in enumerate(words):
            square = []
            for c in range(len(word)):
                attended = sum(attention[i][k][place] * regions[i][k][c] for k in range(len(regions[i])))
                square.append((attended - word[c]) ** 2)
            z = [bias[a] + sum(p * x for p, x in zip(weight[a], square, strict=True)) for a in range(len(bias))]
            length = math.sqrt(sum(x * x for x in z)) + 1e-8
            row.append([x / length for x in z])
        found.append(row)
    return found
