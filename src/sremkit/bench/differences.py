"""Paired differences to the best rival, with 95 % intervals of Student's t over seeds.

Two methods with the same seed have the same mismatches and the same order of batches, so their difference varies less
than either of them. The rival is the other method with the highest mean: chosen after the fact, which makes the
difference of the leading method smaller, never larger.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sremkit.bench.tables import grouped

METRIC = "test_rsum"
NOTE = (
    "Against the best rival: mean difference in R_sum to the method with the highest mean among the others of its "
    "section, backbone and noise, paired by seed, with its 95 % interval (Student's t); bold where the interval lies "
    "above 0."
)


class Difference(NamedTuple):
    """The mean of paired differences and its 95 % interval."""

    mean: float
    low: float
    high: float
    rival: str

    @property
    def is_ahead(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f}) {self.rival}"


def differences_to_best_rival(rows: Sequence[Mapping[str, Any]]) -> dict[tuple, Difference]:
    """By (data, backbone, rate, method), for methods that share two seeds or more with their best rival.

    Methods are compared with methods of the same backbone and noise; single networks with single networks, and
    ensembles with ensembles.
    """
    found = {}
    scored = [{**row, "is_ensemble": row.get("networks", 1) > 1} for row in rows if row.get(METRIC) is not None]
    for (data, backbone, rate, _), members in grouped(scored, "data", "backbone", "rate", "is_ensemble").items():
        of_method = {
            method: {row.get("seed"): float(row[METRIC]) for row in of_one}
            for (method,), of_one in grouped(members, "method").items()
        }
        for method, own in of_method.items():
            rivals = {name: of_seed for name, of_seed in of_method.items() if name != method}
            if not rivals:
                continue
            best = max(rivals, key=lambda name: statistics.fmean(rivals[name].values()))
            if len(own.keys() & rivals[best].keys()) > 1:
                found[data, backbone, rate, method] = paired_difference(own, rivals[best], rival=best)
    return found


def paired_difference(own: Mapping[Any, float], other: Mapping[Any, float], *, rival: str = "") -> Difference:
    """Of two methods' results by seed; seeds that only one of them has are left out.

    >>> difference = paired_difference({0: 5.0, 1: 7.0}, {0: 4.0, 1: 4.0})
    >>> f"{difference.mean:.1f} ({difference.low:.1f} to {difference.high:.1f})"
    '2.0 (-10.7 to 14.7)'
    """
    gains = [own[seed] - other[seed] for seed in own if seed in other]
    if len(gains) < 2:
        raise ValueError(f"an interval needs at least two seeds that both methods have, got {len(gains)}")
    mean = statistics.fmean(gains)
    half = t_quantile(len(gains) - 1) * statistics.stdev(gains) / math.sqrt(len(gains))
    return Difference(mean, mean - half, mean + half, rival)


@cache
def t_quantile(degrees: int, probability: float = 0.975) -> float:
    """The quantile of Student's t above the median, by bisection of the integrated density."""
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)

    def mass_below(bound: float) -> float:
        # With x = sqrt(degrees) tan(angle) the range is finite and the integrand smooth.
        angle = np.linspace(0.0, math.atan(bound / math.sqrt(degrees)), 2001)
        density = np.cos(angle) ** (degrees - 1) * math.sqrt(degrees) * math.exp(log_scale)
        weights = np.where(np.arange(2001) % 2, 4.0, 2.0)  # Simpson's rule
        weights[[0, -1]] = 1.0
        return 0.5 + float(weights @ density) * (angle[1] - angle[0]) / 3

    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mass_below(middle) < probability else (low, middle)
    return (low + high) / 2
