"""Calibration: from the statistic of a pair to P(match), and the noise rate with its interval.

The statistics of the given pairs are a two-component mixture of mismatched and matched pairs. The distribution of the
mismatched component is known: the null distribution, measured on random negatives. On the scale on which it is standard
normal, the matched component is normal too (`binormal.py`). The posterior of this mixture gives the noise rate and,
with the density ratio r(x) = f_given(x) / f_null(x),

    P(mismatch | x) = rate / r(x)

whose mean over flagged pairs is their expected precision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sremkit.audit.scoring.binormal import fit_binormal, normal_scale
from sremkit.audit.scoring.joint_posterior import JointPosterior
from sremkit.audit.scoring.types import NearMismatches, NoiseRate

MIN_PAIRS = 100  # with fewer, nothing is fitted
MIN_PAIRS_FOR_RATE = 300  # with fewer, pairs are ordered but no noise rate is estimated
MIN_SEPARATION = 0.8  # AUROC of matched pairs against negatives from which on scores are calibrated
TIE_BREAK = 1e-3  # weight of the rank in a score: it orders pairs with equal P(match)

KNOTS = 1000  # of P(match) as a function of the statistic, half of them at quantiles of each distribution
SEPARATION_BINS = 48  # of the histograms for the report
# How many given pairs match and score as low as any mismatched pair, beyond what the normal tail says: a fraction, a
# number of pairs, and a part of those in the tail. Chosen on validation seeds, see docs/lab.md.
MIN_DOUBT, DOUBTFUL_PAIRS, DOUBTFUL_TAIL = 0.002, 2.0, 0.3
# Random negatives stand for mismatched pairs only nearly. On Flickr8k the rate was off by less than this.
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
    joint: JointPosterior | None = None  # where images have several captions, which are scored together

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
        """P(match) as `score`, with the captions of an image scored together where that was fitted.

        Args:
            texts: (m, e); image_of_text: (m,); group_of_text: (m,) equal for equal texts.
        """
        if self.ratio is None or self.joint is None:
            return self.score(statistic)
        own = self.ratio.match_prob(statistic)
        return self._without_ties(self.joint.match_prob(own, texts, image_of_text, group_of_text), statistic)

    def _without_ties(self, match_prob: np.ndarray, statistic: np.ndarray) -> np.ndarray:
        return (1 - TIE_BREAK) * match_prob + TIE_BREAK * self.rank(statistic)


def calibrate(given: np.ndarray, null: np.ndarray, given_group: np.ndarray) -> Calibration:
    """Fit to the statistics of given pairs (m,), with the group of each one's image, and of random negatives (w,)."""

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
    # Whole images may be wrong, so the interval takes the captions of an image as one.
    rate = noise_rate_interval(ratio.share.estimate, given, null, effective=len(np.unique(given_group)))
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

    share: NoiseRate  # the rate, with the 95 % interval of its posterior
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
    posterior = fit_binormal(normal_scale(given, null), effective=effective)
    share = NoiseRate(posterior.rate, posterior.rate_quantile(0.025), posterior.rate_quantile(0.975))
    doubt = MIN_DOUBT + DOUBTFUL_PAIRS / max(effective, 1) + DOUBTFUL_TAIL * posterior.low_matched
    knots = np.unique(np.concatenate([np.quantile(values, np.linspace(0, 1, KNOTS // 2)) for values in (given, null)]))
    mismatch_prob = posterior.at(normal_scale(knots, null)) * max(1 - doubt / max(share.estimate, doubt), 0.0)
    return DensityRatio(share, knots, mismatch_prob)


def noise_rate_interval(estimate: float, given: np.ndarray, null: np.ndarray, *, effective: float) -> NoiseRate:
    """The 95 % interval of the posterior for so many independent pairs, widened by what the model itself may be off."""
    posterior = fit_binormal(normal_scale(given, null), effective=effective)
    low, high = min(posterior.rate_quantile(0.025), estimate), max(posterior.rate_quantile(0.975), estimate)
    return NoiseRate(estimate, max(low - MODEL_ERROR, 0.0), min(high + MODEL_ERROR, 1.0))


def auroc(given: np.ndarray, null: np.ndarray) -> float:
    """The probability that a given pair has a higher statistic than a negative; a tie counts half."""
    rising = np.sort(null)
    below = np.searchsorted(rising, given, side="left") + np.searchsorted(rising, given, side="right")
    return float(below.mean() / (2 * len(null)))
