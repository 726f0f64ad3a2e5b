"""The share of wrong pairs with an interval: what chance would make of it, and what the model cannot know."""

from __future__ import annotations

import numpy as np

from sremkit.audit.score_mixture import WrongShare, bins_of, edges_between, shares, wrong_share
from sremkit.audit.verdicts import NoiseRate

REPLICATES = 200
# Made wrong pairs stand for the given ones only nearly, and a few right pairs look as bad as any wrong one. On Flickr8k
# the rate was off by less than this at 0 to 60 % noise.
MODEL_ERROR = 0.01


def noise_rate_interval(
    share: WrongShare,
    given: np.ndarray,
    wrong: np.ndarray,
    given_group: np.ndarray,
    wrong_group: np.ndarray,
    *,
    seed: int,
) -> NoiseRate:
    """Draw whole groups of images anew, many times, and see how far the rate moves.

    Captions of one picture stand or fall together, so drawing single pairs would promise too much.

    Args:
        share: the estimate from the pairs as they are.
        given_group: (m,) group of the image of each given pair; `wrong_group` likewise of the made ones.
    """
    edges = edges_between(given, wrong)
    given_bin, wrong_bin = bins_of(given, edges), bins_of(wrong, edges)
    groups, number = np.unique(np.concatenate([given_group, wrong_group]), return_inverse=True)
    given_number, wrong_number = number[: len(given)], number[len(given) :]
    rng = np.random.default_rng(seed)
    rates = []
    for _ in range(REPLICATES):
        times = rng.poisson(1.0, len(groups)).astype(np.float64)
        if not (times[given_number].any() and times[wrong_number].any()):
            continue
        given_mass = shares(given_bin, times[given_number], len(edges) + 1)
        wrong_mass = shares(wrong_bin, times[wrong_number], len(edges) + 1)
        rates.append(wrong_share(given_mass, wrong_mass, num_given=len(given)).rate)
    low, high = np.quantile(rates, [0.025, 0.975]) if rates else (0.0, 1.0)
    return NoiseRate(
        estimate=share.rate,
        low=float(max(min(low, share.low) - MODEL_ERROR, 0.0)),
        high=float(min(max(high, share.high) + MODEL_ERROR, 1.0)),
    )
