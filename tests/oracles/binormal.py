"""The posterior of the binormal mixture on one fine grid, in slow loops over bins and parameters."""

from __future__ import annotations

import math


def phi(x: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def masses(edges: list[float], mean: float, deviation: float) -> list[float]:
    below = [0.0, *(phi((edge - mean) / deviation) for edge in edges), 1.0]
    return [below[k + 1] - below[k] for k in range(len(below) - 1)]


def posterior(
    counts: list[float],
    edges: list[float],
    rates: list[float],
    means: list[float],
    deviations: list[float],
    *,
    deviation: float,
    spread: float,
) -> tuple[float, list[float]]:
    """Posterior mean of the rate, and of rate f_null / f_given in each bin; flat priors but for the deviation."""
    null = masses(edges, 0.0, 1.0)
    points = []
    for mean in means:
        for sigma in deviations:
            matched = masses(edges, mean, sigma)
            for rate in rates:
                mixture = [rate * n + (1 - rate) * m for n, m in zip(null, matched, strict=True)]
                log_p = -0.5 * ((sigma - deviation) / spread) ** 2
                for count, density in zip(counts, mixture, strict=True):
                    log_p += count * math.log(max(density, 1e-300))
                points.append((log_p, rate, [rate * n / max(f, 1e-300) for n, f in zip(null, mixture, strict=True)]))
    highest = max(log_p for log_p, _, _ in points)
    total = sum(math.exp(log_p - highest) for log_p, _, _ in points)
    mean_rate, mismatch = 0.0, [0.0] * len(null)
    for log_p, rate, probabilities in points:
        weight = math.exp(log_p - highest) / total
        mean_rate += weight * rate
        for k, p in enumerate(probabilities):
            mismatch[k] += weight * p
    return mean_rate, mismatch
