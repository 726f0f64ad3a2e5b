"""MSCN in plain loops: corrected margins, the ranking of kept pairs, and the mixture that keeps them."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def soft_margin(p: float, margin: float) -> float:
    return margin / (1 + (p / (1 - p)) ** (-2))


def ranking(logits: Matrix, kept: list[bool], margin: float, image_id: list[int]) -> float:
    """Hardest hinges of both directions among kept pairs of different images; the margin is the pair's own."""
    s = [[sigmoid(f) for f in row] for row in logits]
    members = [i for i, stays in enumerate(kept) if stays]
    total = 0.0
    for i in members:
        own = soft_margin(s[i][i], margin)
        others = [j for j in members if j != i and image_id[j] != image_id[i]]
        total += max([max(0.0, own + s[i][j] - s[i][i]) for j in others], default=0.0)
        total += max([max(0.0, own + s[j][i] - s[i][i]) for j in others], default=0.0)
    return total


def beta_by_moments(values: list[float], weights: list[float]) -> tuple[float, float]:
    mass = sum(weights)
    mean = sum(w * x for w, x in zip(weights, values, strict=True)) / mass
    variance = sum(w * (x - mean) ** 2 for w, x in zip(weights, values, strict=True)) / mass
    a = mean * (mean * (1 - mean) / variance - 1)
    return a, a * (1 - mean) / mean


def heap(values: list[float], weights: list[float], *, is_right: bool) -> tuple[float, float]:
    """By moments; if the density then rises towards the other heap's end, so narrow that it just does not."""
    a, b = beta_by_moments(values, weights)
    bending = a if is_right else b
    return (a / bending, b / bending) if bending < 1 else (a, b)


def beta_density(x: float, a: float, b: float) -> float:
    log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_norm + (a - 1) * math.log(x) + (b - 1) * math.log(1 - x))


def probability_of_matching(given: list[float], right: list[float], wrong: list[float], iterations: int) -> list[float]:
    def inside(values: list[float]) -> list[float]:
        return [min(max(x, 1e-3), 1 - 1e-3) for x in values]

    given, right, wrong = inside(given), inside(right), inside(wrong)
    of_wrong = heap(wrong, [1.0] * len(wrong), is_right=False)
    of_right = heap(right, [1.0] * len(right), is_right=True)
    share = 0.5
    for step in range(iterations + 1):
        likely = []
        for x in given:
            yes, no = share * beta_density(x, *of_right), (1 - share) * beta_density(x, *of_wrong)
            likely.append(yes / (yes + no))
        if step == iterations:
            return likely
        share = sum(likely) / len(likely)
        of_right = heap(given, likely, is_right=True)
        of_wrong = heap(given, [1 - p for p in likely], is_right=False)
    raise AssertionError
