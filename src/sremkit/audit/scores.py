"""From how pairs fare to how likely they are right: fitted once, and used for any pair of the same collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sremkit.audit.noise_rate import noise_rate_interval
from sremkit.audit.score_mixture import ScoreMixture, fit_mixture, separation
from sremkit.audit.verdicts import NoiseRate

FEWEST_PAIRS = 100  # below, nothing can be learnt
FEWEST_FOR_A_RATE = 300  # below, pairs are put in order, but how many are wrong is anybody's guess
LEAST_SEPARATION = 0.8  # chance that a right pair beats a wrong one, from which on a verdict is ventured
TIE_BREAK = 1e-3  # the part of a score that only orders pairs that are equally likely right
BELIEVED = 0.5  # a pair more likely right than wrong needs no better text or image

INDISTINCT = (
    "the given pairs fit no better than pairs made at random: nearly all of them are wrong, or the vectors say "
    "too little about them"
)
UNCLEAR = (
    "right and wrong pairs look too much alike to these models to say how many are wrong; more pairs or vectors "
    "of a better encoder would help"
)
ORDER_ONLY = (
    "the scores only put the pairs in order, and none is called a mismatch without a fraction or threshold"
)


@dataclass(frozen=True, eq=False)
class FittedScores:
    """What the statistics of some pairs say about all pairs."""

    mixture: ScoreMixture | None  # None where the scores only put pairs in order
    noise_rate: NoiseRate | None
    note: str  # why there is no rate, else empty

    def score(self, statistic: np.ndarray, order: np.ndarray) -> np.ndarray:
        """How likely each pair is right.

        Args:
            order: (m,) in [0, 1]: the share of pairs that fare worse.
        """
        if self.mixture is None:
            return order
        return (1 - TIE_BREAK) * self.mixture.right_probability(statistic) + TIE_BREAK * order


def fit_scores(
    given: np.ndarray, wrong: np.ndarray, given_group: np.ndarray, wrong_group: np.ndarray, *, seed: int
) -> FittedScores:
    """Fit to the statistics of given and of surely wrong pairs, each with the group of its image."""
    if len(given) < FEWEST_FOR_A_RATE:
        return FittedScores(
            None, None, f"{len(given)} pairs are too few to say how many are wrong; {ORDER_ONLY}"
        )
    # By chance alone the share of won comparisons strays by about 0.3 / sqrt(pairs).
    won = separation(given, wrong) if len(wrong) >= FEWEST_PAIRS else 0.5
    if won < 0.5 + max(0.02, 1 / np.sqrt(len(given))):
        return FittedScores(None, None, f"{INDISTINCT}; {ORDER_ONLY}")
    mixture = fit_mixture(given, wrong)
    # A wrong pair wins half of its comparisons; the right ones must account for the rest.
    won_by_right = (won - mixture.rate / 2) / max(1 - mixture.rate, 1e-9)
    if won_by_right < LEAST_SEPARATION:
        return FittedScores(None, None, f"{UNCLEAR}; {ORDER_ONLY}")
    rate = noise_rate_interval(mixture.share, given, wrong, given_group, wrong_group, seed=seed)
    return FittedScores(mixture, rate, "")


def scale_of(wrong_statistic: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of a fold's own wrong pairs: what its statistics are measured in."""
    if len(wrong_statistic) < 2:
        return 0.0, 1.0
    return float(wrong_statistic.mean()), max(float(wrong_statistic.std()), 1e-9)
