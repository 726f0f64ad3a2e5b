"""Labels of people, as an optimization over a fine grid: slope, trend and offset that maximize the posterior."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

PRIOR = ((1.0, 0.5), (0.0, 1.0), (0.0, 2.0))  # mean and standard deviation of slope, trend, offset


def log_posterior(
    features: Sequence[Sequence[float]], labels: Sequence[int], coefficients: Sequence[float], scale: float = 1.0
) -> float:
    """Without its constant; `scale` multiplies the standard deviations of the prior."""
    total = 0.0
    for row, label in zip(features, labels, strict=True):
        logit = sum(x * c for x, c in zip(row, coefficients, strict=True))
        p = 1 / (1 + math.exp(-logit))
        total += math.log(p) if label == 1 else math.log(1 - p)
    for value, (mean, std) in zip(coefficients, PRIOR, strict=True):
        total -= 0.5 * ((value - mean) / (scale * std)) ** 2
    return total


def best_by_search(features: Sequence[Sequence[float]], labels: Sequence[int], scale: float = 1.0) -> list[float]:
    """Coordinate search with shrinking steps; slope and trend stay at 0 or above."""
    point, step = [1.0, 0.0, 0.0], 0.5
    while step > 1e-9:
        moved = False
        for k in range(3):
            for direction in (-step, step):
                trial = list(point)
                trial[k] = max(trial[k] + direction, 0.0) if k < 2 else trial[k] + direction
                if log_posterior(features, labels, trial, scale) > log_posterior(features, labels, point, scale):
                    point, moved = trial, True
        step = step if moved else step / 2
    return point


def evidence_by_draws(
    features: Sequence[Sequence[float]], labels: Sequence[int], scale: float, draws: int, seed: int = 0
) -> float:
    """The logarithm of the mean likelihood of coefficients that are drawn from the prior; slope and trend above 0."""
    generator, total = random.Random(seed), 0.0
    for _ in range(draws):
        point = [generator.gauss(mean, scale * std) for mean, std in PRIOR]
        if point[0] < 0 or point[1] < 0:
            continue
        likelihood = 1.0
        for row, label in zip(features, labels, strict=True):
            p = 1 / (1 + math.exp(-sum(x * c for x, c in zip(row, point, strict=True))))
            likelihood *= p if label == 1 else 1 - p
        total += likelihood
    return math.log(total / draws)
