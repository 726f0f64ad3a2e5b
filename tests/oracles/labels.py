"""Labels of people, as an optimization over a fine grid: slope, trend and offset that maximize the posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence

PRIOR = ((1.0, 0.5), (0.0, 1.0), (0.0, 2.0))  # mean and standard deviation of slope, trend, offset


def log_posterior(features: Sequence[Sequence[float]], labels: Sequence[int], coefficients: Sequence[float]) -> float:
    total = 0.0
    for row, label in zip(features, labels, strict=True):
        logit = sum(x * c for x, c in zip(row, coefficients, strict=True))
        p = 1 / (1 + math.exp(-logit))
        total += math.log(p) if label == 1 else math.log(1 - p)
    for value, (mean, std) in zip(coefficients, PRIOR, strict=True):
        total -= 0.5 * ((value - mean) / std) ** 2
    return total


def best_by_search(features: Sequence[Sequence[float]], labels: Sequence[int]) -> list[float]:
    """Coordinate search with shrinking steps; slope and trend stay at 0 or above."""
    point, step = [1.0, 0.0, 0.0], 0.5
    while step > 1e-9:
        moved = False
        for k in range(3):
            for direction in (-step, step):
                trial = list(point)
                trial[k] = max(trial[k] + direction, 0.0) if k < 2 else trial[k] + direction
                if log_posterior(features, labels, trial) > log_posterior(features, labels, point):
                    point, moved = trial, True
        step = step if moved else step / 2
    return point
