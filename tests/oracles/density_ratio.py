"""Monotone density ratio by its min-max formula, and the known truth of normal mixtures, in slow loops."""

from __future__ import annotations

import math


def isotonic_ratio(given: list[float], null: list[float]) -> list[float]:
    """For each bin the isotonic ratio given / null: max over starts of min over ends of the pooled ratio."""
    n = len(given)
    result = []
    for k in range(n):
        best = -math.inf
        for start in range(k + 1):
            lowest = math.inf
            for end in range(k, n):
                g, w = sum(given[start : end + 1]), sum(null[start : end + 1])
                lowest = min(lowest, g / w if w > 0 else math.inf)
            best = max(best, lowest)
        result.append(best)
    return result


def normal_density(x: float, mean: float, deviation: float) -> float:
    z = (x - mean) / deviation
    return math.exp(-0.5 * z * z) / (deviation * math.sqrt(2 * math.pi))


def match_prob(x: float, rate: float, match_mean: float) -> float:
    """Of a mixture of N(0, 1), the mismatched component, and N(match_mean, 1)."""
    mismatch = rate * normal_density(x, 0, 1)
    match = (1 - rate) * normal_density(x, match_mean, 1)
    return match / (mismatch + match)
