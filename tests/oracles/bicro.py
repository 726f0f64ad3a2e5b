"""BiCro's labels and its mixture of betas in plain loops, written from its formulas."""

from __future__ import annotations

import math

from oracles.ncr import part, strengths
from oracles.triplet import Matrix


def cosine(x: list[float], y: list[float]) -> float:
    def norm(v: list[float]) -> float:
        return math.sqrt(math.fsum(a * a for a in v))

    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / (norm(x) * norm(y))


def ratio(x: float, y: float) -> float:
    return min(x / y, y / x) if x * y > 0 else 0.0


def labels(s: Matrix, images: Matrix, texts: Matrix, clean: list[bool], margin: float) -> list[float]:
    """All of it from the network that teaches: its similarities, its global vectors, its division."""
    right = [i for i, c in enumerate(clean) if c]
    if not right:
        return [0.0] * len(clean)
    p = strengths(part(s, right), margin)
    best = sorted(range(len(right)), key=lambda k: -p[k])[: len(right) // 10 + 1]
    anchors = [right[k] for k in best]
    found = []
    for i in range(len(clean)):
        by_image = max(anchors, key=lambda a: cosine(images[i], images[a]))
        by_text = max(anchors, key=lambda a: cosine(texts[i], texts[a]))
        rho_image, rho_text = (
            ratio(cosine(images[i], images[a]), cosine(texts[i], texts[a])) for a in (by_image, by_text)
        )
        if i in anchors:
            y = 1.0
        elif clean[i]:
            y = 0.5 + (rho_image + rho_text) / 4
        else:
            y = (rho_image + rho_text) / 2
        found.append(0.0 if y <= 0.5 else min(max(y, 0.0), 1.0))
    return found


def beta_density(x: float, a: float, b: float) -> float:
    return math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + (a - 1) * math.log(x) + (b - 1) * math.log(1 - x)
    )


def two_betas(values: list[float], iterations: int) -> tuple[list[float], list[float], list[float]]:
    """Weights, a and b of both components after so many rounds of EM."""
    xs = [min(max(x, 1e-4), 1 - 1e-4) for x in values]
    weight, alpha, beta = [0.5, 0.5], [1.0, 2.0], [2.0, 1.0]
    for _ in range(iterations):
        shares: list[list[float]] = [[], []]
        for x in xs:
            densities = [max(weight[k] * beta_density(x, alpha[k], beta[k]), 1e-12) for k in (0, 1)]
            for k in (0, 1):
                shares[k].append(densities[k] / sum(densities))
        for k in (0, 1):
            mass = math.fsum(shares[k])
            mean = math.fsum(r * x for r, x in zip(shares[k], xs, strict=True)) / mass
            variance = math.fsum(r * (x - mean) ** 2 for r, x in zip(shares[k], xs, strict=True)) / mass
            weight[k] = mass / len(xs)
            alpha[k] = mean * (mean * (1 - mean) / variance - 1)
            beta[k] = alpha[k] * (1 - mean) / mean
    return weight, alpha, beta
