"""The binormal mixture: how many pairs mismatch, and which, where the null distribution is known.

A statistic x of pairs is moved to the scale on which the null distribution is standard normal, y = Phi^-1(F_null(x)).
There mismatched pairs are N(0, 1), and matched ones are taken to be normal too, as in the binormal model of ROC
analysis:

    f_given(y) = rate N(y; 0, 1) + (1 - rate) N(y; mean, deviation)

The posterior of the three parameters is computed on a grid, with a flat prior of the rate and of the mean, so that
whatever few pairs leave open counts with its probability:

    P(mismatch | y) = E[rate N(y; 0, 1) / f_given(y)]

References: Dorfman and Alf 1969 for the model, Efron 2001 for the local rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

EDGES = np.linspace(-3.2, 3.2, 65)  # between bins of y
STEPS = (41, 41, 17)  # of the grid: rates, means, deviations
# Matched pairs that lie nearer to the null distribution could not be told from mismatched ones.
FULL_GRID = ((0.0, 1.0), (0.5, 5.0), (0.5, 1.5))
REFINEMENTS = 3  # each computes the posterior again on a grid around what is left of it
NEGLIGIBLE = 1e-4  # posterior mass outside of the next grid, on each side
# Deviation of matched pairs: on Flickr8k 0.83 to 1.05 with 400 pairs. Thousands of pairs outweigh it.
DEVIATION, DEVIATION_SPREAD = 0.95, 0.12


@dataclass(frozen=True, eq=False)
class BinormalPosterior:
    """What is known about the mixture."""

    rates: np.ndarray  # (r,) grid
    rate_weight: np.ndarray  # (r,) posterior, sums to 1
    mismatch_prob: np.ndarray  # (bins,) P(mismatch) in each bin of y, falling
    low_matched: float  # fraction of the given pairs that match and lie below the median of the null distribution

    @property
    def rate(self) -> float:
        return float(self.rates @ self.rate_weight)

    def rate_quantile(self, fraction: float) -> float:
        """Linear between the points of the grid."""
        middle = np.cumsum(self.rate_weight) - self.rate_weight / 2
        return float(np.interp(fraction, middle, self.rates))

    def at(self, y: np.ndarray) -> np.ndarray:
        """P(mismatch) there, linear between the middles of the bins."""
        step = EDGES[1] - EDGES[0]
        middles = np.append(EDGES - step / 2, EDGES[-1] + step / 2)
        return np.interp(y, middles, self.mismatch_prob)


def normal_scale(statistic: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Phi^-1(F_null(x)) of each statistic; a tie counts half."""
    rising = np.sort(null)
    below = np.searchsorted(rising, statistic, side="left") + np.searchsorted(rising, statistic, side="right")
    return torch.special.ndtri(torch.from_numpy((below + 1) / (2 * len(null) + 2))).numpy()


def fit_binormal(y: np.ndarray, *, effective: float) -> BinormalPosterior:
    """Fit to pairs on the scale of `normal_scale`.

    Args:
        y: (m,).
        effective: how many independent pairs they count as.
    """
    counts = np.bincount(np.searchsorted(EDGES, y), minlength=len(EDGES) + 1) * (effective / max(len(y), 1))
    null = _normal_masses(np.zeros(1), np.ones(1))[0]  # (bins,)
    bounds: tuple[tuple[float, float], ...] = FULL_GRID
    for _ in range(REFINEMENTS):
        grids = [np.linspace(*bound, steps) for bound, steps in zip(bounds, STEPS, strict=True)]
        rates, means, deviations = grids
        matched = _normal_masses(*(a.reshape(-1) for a in np.meshgrid(means, deviations, indexing="ij")))  # (k, bins)
        log_prior = np.tile(-0.5 * ((deviations - DEVIATION) / DEVIATION_SPREAD) ** 2, len(means))  # (k,)
        log_posterior = np.stack(
            [np.log(np.maximum(rate * null + (1 - rate) * matched, 1e-300)) @ counts + log_prior for rate in rates]
        )  # (rates, k)
        weight = np.exp(log_posterior - log_posterior.max())
        weight /= weight.sum()
        marginals = weight.reshape(len(rates), len(means), len(deviations))
        axes = ((1, 2), (0, 2), (0, 1))
        bounds = tuple(_likely_range(grid, marginals.sum(axis)) for grid, axis in zip(grids, axes, strict=True))
    mismatch_prob = np.zeros(len(null))
    for rate, of_rate in zip(rates, weight, strict=True):
        mismatch_prob += of_rate @ (rate * null / np.maximum(rate * null + (1 - rate) * matched, 1e-300))
    below_median = matched[:, : np.searchsorted(EDGES, 0.0) + 1].sum(1)  # (k,)
    low_matched = float((1 - rates) @ weight @ below_median)
    return BinormalPosterior(rates, weight.sum(1), np.minimum.accumulate(mismatch_prob), low_matched)


def _normal_masses(means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """(k, bins): the mass of each normal distribution in each bin."""
    below = torch.special.ndtr(torch.from_numpy((EDGES - means[:, None]) / deviations[:, None])).numpy()  # (k, edges)
    return np.diff(below, axis=1, prepend=0.0, append=1.0)


def _likely_range(grid: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """The part of a grid that holds nearly all of the posterior, one step wider on each side."""
    below = np.cumsum(weight)
    first = int(np.searchsorted(below, NEGLIGIBLE))
    last = int(np.searchsorted(below, 1 - NEGLIGIBLE))
    return float(grid[max(first - 1, 0)]), float(grid[min(last + 1, len(grid) - 1)])
