"""Rivals of the audit, pair by pair in float64: lists of unit vectors, images[i] with texts[i]."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

Vectors = Sequence[Sequence[float]]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def nearest(vectors: Vectors, i: int, k: int) -> list[int]:
    others = [j for j in range(len(vectors)) if j != i]
    return sorted(others, key=lambda j: -cosine(vectors[i], vectors[j]))[:k]


def deep_knn(images: Vectors, texts: Vectors, k: int) -> list[float]:
    """How much the text agrees with those of the k nearest images, on average."""
    return [sum(cosine(texts[i], texts[j]) for j in nearest(images, i, k)) / k for i in range(len(texts))]


def discrepancy(images: Vectors, texts: Vectors, k: int) -> list[float]:
    """How near the image is to the images of the neighbours of the text's neighbours, on average."""
    scores = []
    for i in range(len(texts)):
        second = [other for j in nearest(texts, i, k) for other in nearest(texts, j, k)]
        scores.append(sum(cosine(images[i], images[j]) for j in second) / len(second))
    return scores


def lemon(images: Vectors, texts: Vectors, k: int, beta: float, gamma: float, tau1: float, tau2: float) -> list[float]:
    """High for wrong pairs. Inside of the first factor the distance is -cos, elsewhere it is 1 - cos."""
    match = [1 - cosine(x, y) for x, y in zip(images, texts, strict=True)]
    scores = []
    for i in range(len(texts)):
        s_n = sum(
            (1 - cosine(texts[i], texts[j])) * exp(tau1 * cosine(images[i], images[j])) * exp(-tau2 * match[j])
            for j in nearest(images, i, k)
        )
        s_m = sum(
            (1 - cosine(images[i], images[j])) * exp(tau1 * cosine(texts[i], texts[j])) * exp(-tau2 * match[j])
            for j in nearest(texts, i, k)
        )
        scores.append(match[i] + beta * s_n / k + gamma * s_m / k)
    return scores
