"""Density-ratio calibration: from the statistic of a pair to P(match), and the noise rate with its interval.

The statistics of the given pairs are a two-component mixture of mismatched and matched pairs. The distribution of the
mismatched component is known: the null distribution, measured on random negatives.

    f_given = rate f_null + (1 - rate) f_match,   r(x) = f_given(x) / f_null(x)               (density ratio)

r rises with x, so it is fitted by isotonic regression of "given or negative?" on x. How fast matched pairs appear at
the low end is not known: r = rate_p + slope_p q^p, with q the null distribution function, is fitted for several powers
p, and each counts by how well it fits the counts (weight_p). The rate is the mean of rate_p. From both follows

    P(mismatch | x) = rate / r(x),   at the low end the mean over p of rate_p / (rate_p + slope_p q^p)

whose mean over flagged pairs is their expected precision.
References: Storey 2002 for the rate, Efron 2001 for the local rate, Ayer et al. 1955 for isotonic regression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sremkit.audit.scoring.joint_posterior import JointPosterior
from sremkit.audit.scoring.types import NearMismatches, NoiseRate

MIN_PAIRS = 100  # with fewer, nothing is fitted
MIN_PAIRS_FOR_RATE = 300  # with fewer, pairs are ordered but no noise rate is estimated
MIN_SEPARATION = 0.8  # AUROC of matched pairs against negatives from which on scores are calibrated
TIE_BREAK = 1e-3  # weight of the rank in a score: it orders pairs with equal P(match)

BINS = 1000
SEPARATION_BINS = 48  # of the histograms for the report
LOW_STEP = 0.005  # of the null distribution function between knots at the low end
# A few matched pairs score as low as any mismatched one: this fraction of the given pairs, and some in small data.
MIN_DOUBT, DOUBT = 0.002, 2.0
STEP, MAX_QUANTILE = 0.04, 0.8  # the rate is read from the lower part of the null distribution, in steps
MAX_EXCESS_MISFIT = 4.0  # of a weighted sum of squares: two standard errors
PRIOR = 0.6  # of a power: its own power; from the validation seeds, see docs/lab.md
POWERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
REPLICATES = 200
# Random negatives stand for mismatched pairs only nearly, and a few matched pairs score as low as any mismatched one.
# On Flickr8k the rate was off by less than this at 0 to 60 % noise.
MODEL_ERROR = 0.01

INDISTINCT = (
    "the given pairs fit no better than pairs made at random: nearly all of them are wrong, or the vectors say "
    "too little about them"
)
UNCLEAR = (
    "right and wrong pairs look too much alike to these models to say how many are wrong; more pairs or vectors "
    "of a better encoder would help"
)
ORDER_ONLY = "the scores only put the pairs in order, and none is flagged without a fraction or threshold"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The map from statistics to scores, fitted to some pairs and applicable to any pair of the collection."""

    ratio: DensityRatio | None  # None where scores are ranks
    noise_rate: NoiseRate | None
    note: str  # why there is no noise rate, else empty
    sorted_statistic: np.ndarray  # (m,) of the pairs fitted to
    separation: dict[str, list[float]] | None = None  # histograms of given pairs and negatives, for the report
    near: NearMismatches | None = None  # what near mismatches could add
    joint: JointPosterior | None = None  # where images have several captions, which are judged together

    def rank(self, statistic: np.ndarray) -> np.ndarray:
        """The fraction of the fitted pairs with a lower statistic, in [0, 1]."""
        lower = np.searchsorted(self.sorted_statistic, statistic)
        return np.minimum(lower / max(len(self.sorted_statistic) - 1, 1), 1.0)

    def score(self, statistic: np.ndarray) -> np.ndarray:
        """P(match), with ties broken by rank; the rank alone where there is no density ratio."""
        if self.ratio is None:
            return self.rank(statistic)
        return self._without_ties(self.ratio.match_prob(statistic), statistic)

    def score_pairs(
        self, statistic: np.ndarray, texts: np.ndarray, image_of_text: np.ndarray, group_of_text: np.ndarray
    ) -> np.ndarray:
        """P(match) as `score`, with the captions of an image judged together where that was fitted.

        Args:
            texts: (m, e); image_of_text: (m,); group_of_text: (m,) equal for equal texts.
        """
        if self.ratio is None or self.joint is None:
            return self.score(statistic)
        own = self.ratio.match_prob(statistic)
        return self._without_ties(self.joint.match_prob(own, texts, image_of_text, group_of_text), statistic)

    def _without_ties(self, match_prob: np.ndarray, statistic: np.ndarray) -> np.ndarray:
        return (1 - TIE_BREAK) * match_prob + TIE_BREAK * self.rank(statistic)


def calibrate(
    given: np.ndarray, null: np.ndarray, given_group: np.ndarray, null_group: np.ndarray, *, seed: int
) -> Calibration:
    """Fit to the statistics of given pairs (m,) and of random negatives (w,), each with the group of its image."""

    def ranks_only(reason: str) -> Calibration:
        return Calibration(None, None, f"{reason}; {ORDER_ONLY}", np.sort(given))

    if len(given) < MIN_PAIRS_FOR_RATE:
        return ranks_only(f"{len(given)} pairs are too few to say how many are wrong")
    # By chance alone the AUROC strays from 0.5 by about 0.3 / sqrt(pairs).
    separated = auroc(given, null) if len(null) >= MIN_PAIRS else 0.5
    if separated < 0.5 + max(0.02, 1 / np.sqrt(len(given))):
        return ranks_only(INDISTINCT)
    effective = independent_pairs(given_group)
    ratio = fit_density_ratio(given, null, effective=effective)
    if not ratio.separates(separated):
        return ranks_only(UNCLEAR)
    rate = noise_rate_interval(ratio.share, given, null, given_group, null_group, seed=seed, effective=effective)
    fitted = Calibration(ratio, rate, "", np.sort(given))
    return replace(fitted, separation=separation_of(fitted, given, null))


def independent_pairs(group: np.ndarray) -> float:
    """How many independent pairs count as much as these, whose images have the groups (m,).

    Captions of an image are not independent: the number lies between that of the groups and that of the pairs.
    """
    return float(np.sqrt(len(group) * len(np.unique(group))))


def separation_of(fitted: Calibration, given: np.ndarray, null: np.ndarray) -> dict[str, list[float]]:
    """Fractions of the given pairs and of the random negatives in bins of the statistic, and P(match) at their edges.

    The outermost bins take what lies outside.
    """
    low, high = (float(end) for end in np.quantile(np.concatenate([given, null]), [0.001, 0.999]))
    edges = np.linspace(low, max(high, low + 1e-6), SEPARATION_BINS + 1)
    bins = [np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values) for values in (given, null)]
    arrays = {"edges": edges, "given": bins[0], "negatives": bins[1], "match_probability": fitted.score(edges)}
    return {name: [round(float(value), 6) for value in array] for name, array in arrays.items()}


def is_suspicious(match_prob: np.ndarray, noise_rate: NoiseRate | None) -> np.ndarray:
    """(m,) bool: pairs that more likely mismatch, for which a better text or image is named."""
    return (match_prob < 0.5) & (noise_rate is not None)


def null_scale(null: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of a fold's null distribution: the scale that makes folds comparable."""
    if len(null) < 2:
        return 0.0, 1.0
    return float(null.mean()), max(float(null.std()), 1e-9)


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """The noise rate, and P(mismatch) as a function of the statistic."""

    share: NoiseRate  # the rate, and the range of rates that fit the counts about as well
    knots: np.ndarray  # (k,) rising statistics
    mismatch_prob: np.ndarray  # (k,) falling: P(mismatch) there

    def match_prob(self, statistic: np.ndarray) -> np.ndarray:
        """P(match), linear between the knots and rising with the statistic."""
        return 1 - np.interp(statistic, self.knots, self.mismatch_prob)

    def separates(self, auroc: float) -> bool:
        """Whether matched pairs score above negatives, given the AUROC of all given pairs.

        A mismatched pair wins half of its comparisons.
        """
        rate = self.share.estimate
        return (auroc - rate / 2) / max(1 - rate, 1e-9) >= MIN_SEPARATION


def fit_density_ratio(given: np.ndarray, null: np.ndarray, *, effective: float | None = None) -> DensityRatio:
    """Fit to the statistics of the given pairs and of random negatives.

    Args:
        effective: number of independent given pairs, by default all.
    """
    effective = len(given) if effective is None else effective
    edges = bin_edges(given, null)
    given_bin, null_bin = (np.searchsorted(edges, values, side="right") for values in (given, null))
    given_mass, null_mass = (_mass(bins, len(edges) + 1) for bins in (given_bin, null_bin))  # (bins,)
    powers = fit_powers(given_mass, null_mass, num_given=effective)
    share = powers.share()
    values, bins = np.concatenate([given, null]), np.concatenate([given_bin, null_bin])
    count, total = (np.bincount(bins, weights, minlength=len(edges) + 1) for weights in (None, values))
    edge_below = np.concatenate([edges[:1], edges])  # in place of the mean of an empty bin
    means = np.where(count > 0, total / np.maximum(count, 1), edge_below)
    knots, block_given, block_null = isotonic_ratio(given_mass, null_mass, means)
    # The ratio is 0 in blocks without given pairs and infinite without negatives; rate / r is finite in both.
    of_blocks = np.minimum(share.estimate * block_null / np.maximum(block_given, 1e-12), 1.0)
    rising = np.sort(null)
    low_knots = np.quantile(null, np.arange(0.0, MAX_QUANTILE, LOW_STEP))
    every_knot = np.unique(np.concatenate([knots, low_knots]))
    below = np.searchsorted(rising, every_knot, side="right") / len(null)  # q
    above = np.interp(every_knot, knots, of_blocks)
    doubt = MIN_DOUBT + DOUBT / effective
    mismatch_prob = np.where(below <= MAX_QUANTILE, powers.mismatch_prob(below, doubt), above)
    return DensityRatio(share, every_knot, np.minimum.accumulate(mismatch_prob))


class PowerFits(NamedTuple):
    """Fits of r = rate + slope q^power, one for each of POWERS."""

    rate: np.ndarray  # (powers,)
    slope: np.ndarray
    misfit: np.ndarray  # weighted sums of squares

    @property
    def weight(self) -> np.ndarray:
        """(powers,) sums to 1: the likelihood of each fit, times a prior by which components that are separate are
        likelier than ones that overlap, so that easy data are not taken for difficult ones by chance."""
        weight = np.exp(-(self.misfit - self.misfit.min()) / 2) * np.array(POWERS) ** PRIOR
        return weight / weight.sum()

    def share(self) -> NoiseRate:
        """The mean rate, and the range of the rates of all powers that fit about as well as the best."""
        plausible = self.rate[self.misfit <= self.misfit.min() + MAX_EXCESS_MISFIT]
        estimate = float(self.weight @ self.rate)
        return NoiseRate(estimate, float(min(plausible.min(), estimate)), float(max(plausible.max(), estimate)))

    def mismatch_prob(self, below: np.ndarray, doubt: float) -> np.ndarray:
        """P(mismatch) where the null distribution function is `below` (k,).

        Args:
            doubt: fraction of the given pairs that match and score as low as any mismatched pair.
        """
        grown = below[:, None] ** np.array(POWERS)  # (k, powers)
        ratio = np.maximum(self.rate + self.slope * grown, 1e-12)
        return (np.maximum(self.rate - doubt, 0.0) / ratio) @ self.weight


def fit_powers(given_mass: np.ndarray, null_mass: np.ndarray, *, num_given: float) -> PowerFits:
    """Fit r = rate + slope q^power to the low end, q the null distribution function, for each of POWERS.

    With a large power, matched pairs begin to appear late: r is flat at the low end, and its height is the rate. With a
    small power the two components overlap throughout.

    Args:
        given_mass: (bins,) fraction of the given pairs in each bin, the lowest first; `null_mass` likewise.
        num_given: number of given pairs.
    """
    upper, given, null = _coarse_bins(given_mass, null_mass)
    ratio = given / null
    expected = max(given.sum() / null.sum(), 1 / num_given)  # smooths the variance of bins with few pairs
    weight = num_given * null / (0.5 * ratio + 0.5 * expected)  # 1 / variance: counts are about Poisson
    lower = np.concatenate([[0.0], upper[:-1]])
    fits = []
    for power in POWERS:
        mean_power = (upper ** (power + 1) - lower ** (power + 1)) / ((power + 1) * (upper - lower))  # in each bin
        rate, slope, misfit = _nonnegative_least_squares(mean_power, ratio, weight)
        fits.append((min(rate, 1.0), slope, misfit))
    return PowerFits(*np.array(fits).T)


def estimate_rate(given_mass: np.ndarray, null_mass: np.ndarray, *, num_given: float) -> NoiseRate:
    """The noise rate, see `fit_powers`, with the range of rates that fit the counts about as well."""
    return fit_powers(given_mass, null_mass, num_given=num_given).share()


def noise_rate_interval(
    share: NoiseRate,
    given: np.ndarray,
    null: np.ndarray,
    given_group: np.ndarray,
    null_group: np.ndarray,
    *,
    seed: int,
    effective: float | None = None,
) -> NoiseRate:
    """A 95 % interval by a Poisson bootstrap over groups of images, widened by the model's own uncertainty.

    Whole groups are drawn, because captions of one image are not independent: `given_group` (m,) is the group of the
    image of each given pair, `null_group` (w,) that of each negative. `share` is the estimate from all pairs.
    """
    edges = bin_edges(given, null)
    given_bin, null_bin = (np.searchsorted(edges, values, side="right") for values in (given, null))
    groups, number = np.unique(np.concatenate([given_group, null_group]), return_inverse=True)
    given_number, null_number = number[: len(given)], number[len(given) :]
    rng = np.random.default_rng(seed)
    rates = []
    for _ in range(REPLICATES):
        times = rng.poisson(1.0, len(groups)).astype(np.float64)
        if not (times[given_number].any() and times[null_number].any()):
            continue
        given_mass, null_mass = (
            _mass(bins, len(edges) + 1, times[numbers])
            for bins, numbers in ((given_bin, given_number), (null_bin, null_number))
        )
        rates.append(estimate_rate(given_mass, null_mass, num_given=effective or len(given)).estimate)
    low, high = np.quantile(rates, [0.025, 0.975]) if rates else (0.0, 1.0)
    return NoiseRate(
        estimate=share.estimate,
        low=float(max(min(low, share.low) - MODEL_ERROR, 0.0)),
        high=float(min(max(high, share.high) + MODEL_ERROR, 1.0)),
    )


def _coarse_bins(given_mass: np.ndarray, null_mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bins joined until each holds about STEP of the null mass, up to MAX_QUANTILE: upper q, given, null."""
    below_given, below_null = np.cumsum(given_mass), np.cumsum(null_mass)
    steps = np.arange(STEP, MAX_QUANTILE + STEP / 2, STEP)
    at = np.unique(np.searchsorted(below_null, steps).clip(max=len(below_null) - 1))
    given, null = np.diff(below_given[at], prepend=0.0), np.diff(below_null[at], prepend=0.0)
    filled = null > 0
    return below_null[at][filled], given[filled], null[filled]


def _nonnegative_least_squares(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float, float]:
    """Weighted least squares of y = rate + slope x with rate, slope >= 0: the rate, slope and weighted misfit."""

    def misfit(rate: float, slope: float) -> tuple[float, float, float]:
        return rate, slope, float((weight * (y - rate - slope * x) ** 2).sum())

    total, mean_x, mean_y = weight.sum(), np.average(x, weights=weight), np.average(y, weights=weight)
    spread = (weight * (x - mean_x) ** 2).sum()
    slope = (weight * (x - mean_x) * (y - mean_y)).sum() / spread if spread > 1e-12 * total else 0.0
    if slope <= 0:
        return misfit(float(mean_y), 0.0)
    if mean_y - slope * mean_x >= 0:
        return misfit(float(mean_y - slope * mean_x), slope)
    return misfit(0.0, (weight * x * y).sum() / (weight * x * x).sum())


def bin_edges(given: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Edges between bins, half of them at quantiles of each distribution."""
    quantiles = np.linspace(0, 1, BINS // 2 + 1)[1:-1]
    return np.unique(np.concatenate([np.quantile(given, quantiles), np.quantile(null, quantiles)]))


def _mass(bins: np.ndarray, num_bins: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The fraction of the values in each bin."""
    mass = np.bincount(bins, weights, minlength=num_bins)
    return mass / mass.sum()


def isotonic_ratio(
    given_mass: np.ndarray, null_mass: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pool adjacent violators until given / null rises. Returns each block's mean, given mass and null mass."""
    blocks: list[tuple[float, float, float]] = []  # given, null, sum of means weighted by both
    for given, null, mean in zip(given_mass, null_mass, means, strict=True):
        if given + null == 0:
            continue
        block = (given, null, (given + null) * mean)
        # a / b >= c / d without dividing: the block before is not below this one, so they are pooled.
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    table = np.array(blocks)  # (blocks, 3)
    return table[:, 2] / (table[:, 0] + table[:, 1]), table[:, 0], table[:, 1]


def auroc(given: np.ndarray, null: np.ndarray) -> float:
    """The probability that a given pair has a higher statistic than a negative; a tie counts half."""
    rising = np.sort(null)
    below = np.searchsorted(rising, given, side="left") + np.searchsorted(rising, given, side="right")
    return float(below.mean() / (2 * len(null)))
