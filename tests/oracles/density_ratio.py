"""The known truth of normal mixtures."""

from __future__ import annotations

import math


def normal_density(x: float, mean: float, deviation: float) -> float:
    z = (x - mean) / deviation
    return math.exp(-0.5 * z * z) / (deviation * math.sqrt(2 * math.pi))


def match_prob(x: float, rate: float, match_mean: float) -> float:
    """Of a mixture of N(0, 1), the mismatched component, and N(match_mean, 1)."""
    mismatch = rate * normal_density(x, 0, 1)
    match = (1 - rate) * normal_density(x, match_mean, 1)
    return match / (mismatch + match)
