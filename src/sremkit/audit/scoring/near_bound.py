"""How many pairs could be mismatched at most, if mismatches are near: an upper bound from near negatives.

The given pairs are a mixture of random-like mismatches, near ones and matched pairs,

    f_given = a f_null + b f_near + (1 - a - b) f_match,

of which f_match is not known. But matched pairs score above near negatives, so f_match / f_near rises with the
statistic, and with it

    y(x) = (f_given(x) - a f_null(x)) / f_near(x) = b + (1 - a - b) f_match(x) / f_near(x).

So b is at most the mean of y over any number of the lowest bins: for each a the least of these means, each with its
standard error, bounds b. Values of a for which a rising function (isotonic regression) does not fit the counts are left
out. The bound is the largest a + b.
"""

from __future__ import annotations

import numpy as np

from sremkit.audit.scoring.negatives import NEAR_KINDS
from sremkit.audit.scoring.types import NearMismatches, NoiseRate

STEP, MAX_QUANTILE = 0.05, 0.9  # bins by quantiles of the near negatives
GRID = 41  # values of a
MAX_EXCESS_MISFIT = 4.0  # of a weighted sum of squares: two standard errors
NORMAL_QUANTILE = 2.5  # of the least of several means, of which each could be low by chance
MIN_NEGATIVES = 100
MAX_WIDTH = 0.2  # of the interval of all mismatches; if it is wider, their number cannot be told


def bound_near_mismatches(
    rate: NoiseRate,
    given: np.ndarray,
    null: np.ndarray,
    near: np.ndarray,
    near_kind: np.ndarray,
    source_match_prob: np.ndarray,
    *,
    effective: float,
) -> NearMismatches:
    """The interval of the rate of all mismatches, whichever kind of near negatives they are like.

    Args:
        rate: of mismatches that are like random negatives.
        given, null: statistics of the given pairs (m,) and of random negatives (w,).
        near: (v,) of near negatives, with their kinds (v,).
        source_match_prob: (v,) P(match) of the given pair that each was made of: one made of a mismatched pair is not
            near.
        effective: number of independent given pairs.
    """
    by_kind = {}
    for kind, name in enumerate(NEAR_KINDS):
        chosen = near_kind == kind
        weight = source_match_prob[chosen]
        if weight.sum() < MIN_NEGATIVES:
            continue
        by_kind[name] = max(upper_bound(given, null, near[chosen], weight, effective=effective), rate.high)
    high = max(by_kind.values(), default=1.0)
    return NearMismatches(rate.low, high, by_kind, bool(high - rate.low <= MAX_WIDTH))


def upper_bound(
    given: np.ndarray, null: np.ndarray, near: np.ndarray, weight: np.ndarray, *, effective: float
) -> float:
    """The largest share of mismatches, random-like and like these near negatives together, that fits the counts."""
    edges = np.unique(_weighted_quantiles(near, weight, np.arange(STEP, MAX_QUANTILE + STEP / 2, STEP)))
    of_given, of_null, of_near = (
        _below(values, w, edges) for values, w in ((given, None), (null, None), (near, weight))
    )
    filled = of_near > 0
    of_given, of_null, of_near = of_given[filled], of_null[filled], of_near[filled]
    expected = max(float(of_given.sum() / of_near.sum()), 1 / effective)
    precision = effective * of_near / (0.5 * of_given / of_near + 0.5 * expected)  # 1 / variance of y
    shares = np.linspace(0, 1, GRID)
    ratios = [(of_given - a * of_null) / of_near for a in shares]
    misfits = [_misfit_of_rising(y, precision) for y in ratios]
    near_count = np.cumsum(of_near) * weight.sum() ** 2 / (weight**2).sum()
    # By chance alone the misfit is about the number of bins, give or take its standard deviation.
    allowed = max(min(misfits) + MAX_EXCESS_MISFIT, len(of_near) + 2 * (2 * len(of_near)) ** 0.5)
    highest = 0.0
    for a, y, misfit in zip(shares, ratios, misfits, strict=True):
        if misfit <= allowed:
            total = np.cumsum(precision)
            mean = np.maximum(np.cumsum(precision * y) / total, 0.0)  # over the lowest bins
            error = np.sqrt(1 / total + mean**2 / near_count)  # of the given pairs, and of the near negatives
            highest = max(highest, float(a + (mean + NORMAL_QUANTILE * error).min()))
    return min(highest, 1.0)


def _misfit_of_rising(y: np.ndarray, precision: np.ndarray) -> float:
    """The weighted sum of squares of y - g for the best rising g >= 0, by isotonic regression."""
    blocks: list[list[float]] = []  # sum of weights, weighted sum, number of bins
    for value, weight in zip(y, precision, strict=True):
        blocks.append([weight, weight * value, 1])
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] >= blocks[-1][1] * blocks[-2][0]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    levels = np.concatenate([np.full(int(count), max(total / weight, 0.0)) for weight, total, count in blocks])
    return float((precision * (y - levels) ** 2).sum())


def _weighted_quantiles(values: np.ndarray, weight: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order]) / weight.sum()
    return values[order][np.searchsorted(below, quantiles).clip(max=len(values) - 1)]


def _below(values: np.ndarray, weight: np.ndarray | None, edges: np.ndarray) -> np.ndarray:
    """The fraction of the values in each bin below the last edge."""
    counts = np.bincount(np.searchsorted(edges, values, side="left"), weight, minlength=len(edges) + 1)
    return counts[:-1] / (len(values) if weight is None else weight.sum())
