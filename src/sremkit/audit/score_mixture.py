"""How likely each pair is right, when one of the two heaps is known.

The statistic of the given pairs is a mixture of wrong and right ones, and the wrong heap can be measured:

    f_given = rate f_wrong + (1 - rate) f_right,   r(x) = f_given(x) / f_wrong(x)             (density ratio)

A better statistic never makes a pair more suspicious, so r rises with x: it is fitted by isotonic regression of
"given, or surely wrong?" on x. Right pairs hardly ever look worse than most wrong ones, so at the low end r comes down
to the rate. From both follows

    P(wrong | x) = rate / r(x)

and its mean over all given pairs is the rate again, and over any called pairs the share of wrong ones among them.
References: Storey 2002 for the rate, Efron 2001 for the local rate, Ayer et al. 1955 for the regression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 1000
STEP, HIGHEST = 0.04, 0.8  # of the wrong heap: the rate is read off its lower part, in steps
CHANCE = 4.0  # of a weighted sum of squares: two standard errors
POWERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True, eq=False)
class ScoreMixture:
    """The share of wrong pairs, and what it makes of a statistic."""

    share: WrongShare
    place: np.ndarray  # (k,) rising statistics
    wrong: np.ndarray  # (k,) falling: the probability of being wrong there

    @property
    def rate(self) -> float:
        return self.share.rate

    def right_probability(self, statistic: np.ndarray) -> np.ndarray:
        """How likely a pair with this statistic is right: rises with it, in straight lines between places."""
        return 1 - np.interp(statistic, self.place, self.wrong)


def fit_mixture(given: np.ndarray, wrong: np.ndarray) -> ScoreMixture:
    """Fit to the statistics of the given pairs and of surely wrong ones."""
    edges = edges_between(given, wrong)
    given_mass = shares(bins_of(given, edges), np.ones(len(given)), len(edges) + 1)  # (bins,)
    wrong_mass = shares(bins_of(wrong, edges), np.ones(len(wrong)), len(edges) + 1)
    share = wrong_share(given_mass, wrong_mass, num_given=len(given))
    rate = share.rate
    middle = _means(np.concatenate([given, wrong]), edges)
    place, ratio_given, ratio_wrong = _rising_ratio(given_mass, wrong_mass, middle)
    # In blocks without given pairs the ratio is 0, and without wrong ones infinite; rate / r is finite in both.
    probability = np.minimum(rate * ratio_wrong / np.maximum(ratio_given, 1e-12), 1.0)
    return ScoreMixture(share, place, probability)


@dataclass(frozen=True)
class WrongShare:
    """The rate, and the lowest and highest that fit the counts about as well."""

    rate: float
    low: float
    high: float


def wrong_share(given_mass: np.ndarray, wrong_mass: np.ndarray, *, num_given: float) -> WrongShare:
    """The rate: what is left of r(x) = rate + rise * q^power where q, the share of wrong pairs below x, is 0.

    A large power says that right pairs begin to appear late: then r is flat from the low end on, and its height
    is the rate. A small power says that the heaps overlap throughout. Of the powers that fit the counts, the largest
    is believed; the others say what the rate could be as well.

    Args:
        given_mass: (bins,) share of the given pairs in each bin, the lowest first; `wrong_mass` likewise.
        num_given: how many given pairs there are.
    """
    upper, given, wrong = _coarse(given_mass, wrong_mass)
    ratio = given / wrong
    expected = max(given.sum() / wrong.sum(), 1 / num_given)  # smooths the errors of bins that hold few
    weight = num_given * wrong / (0.5 * ratio + 0.5 * expected)  # 1 / variance: counts are about Poisson
    lower = np.concatenate([[0.0], upper[:-1]])
    rates, misfits = [], []
    for power in POWERS:
        rise = (upper ** (power + 1) - lower ** (power + 1)) / (
            (power + 1) * (upper - lower)
        )  # mean in the bin
        rate, misfit = _fit_line(rise, ratio, weight)
        rates.append(min(rate, 1.0))
        misfits.append(misfit)
    # A misfit that chance explains, two standard errors, is none. With one, every third collection would be taken for
    # one whose heaps overlap, the rate read too low, and hardly a pair be called.
    fits = [k for k, misfit in enumerate(misfits) if misfit <= min(misfits) + CHANCE]
    possible = [rates[k] for k in fits]
    return WrongShare(rates[max(fits)], min(possible), max(possible))


def _coarse(given_mass: np.ndarray, wrong_mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bins joined until each holds about STEP of the wrong heap, up to HIGHEST of it: q above, given, wrong."""
    below_given, below_wrong = np.cumsum(given_mass), np.cumsum(wrong_mass)
    steps = np.arange(STEP, HIGHEST + STEP / 2, STEP)
    at = np.unique(np.searchsorted(below_wrong, steps).clip(max=len(below_wrong) - 1))
    given, wrong = np.diff(below_given[at], prepend=0.0), np.diff(below_wrong[at], prepend=0.0)
    filled = wrong > 0
    return below_wrong[at][filled], given[filled], wrong[filled]


def _fit_line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Weighted least squares of y = rate + c x with neither below 0: the rate and the weighted misfit."""

    def misfit(rate: float, slope: float) -> tuple[float, float]:
        return rate, float((weight * (y - rate - slope * x) ** 2).sum())

    total, mean_x, mean_y = weight.sum(), np.average(x, weights=weight), np.average(y, weights=weight)
    spread = (weight * (x - mean_x) ** 2).sum()
    slope = (weight * (x - mean_x) * (y - mean_y)).sum() / spread if spread > 1e-12 * total else 0.0
    if slope <= 0:
        return misfit(float(mean_y), 0.0)
    if mean_y - slope * mean_x >= 0:
        return misfit(float(mean_y - slope * mean_x), slope)
    return misfit(0.0, (weight * x * y).sum() / (weight * x * x).sum())


def edges_between(given: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Borders between bins, half of them at quantiles of each heap."""
    shares = np.linspace(0, 1, BINS // 2 + 1)[1:-1]
    return np.unique(np.concatenate([np.quantile(given, shares), np.quantile(wrong, shares)]))


def bins_of(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.searchsorted(edges, values, side="right")


def shares(bins: np.ndarray, weight: np.ndarray, num_bins: int) -> np.ndarray:
    """The share of all weight that falls into each bin."""
    mass = np.bincount(bins, weight, minlength=num_bins)
    return mass / mass.sum()


def _means(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The mean value of each bin; of an empty one the border below it."""
    number = bins_of(values, edges)
    count = np.bincount(number, minlength=len(edges) + 1)
    total = np.bincount(number, values, minlength=len(edges) + 1)
    border = np.concatenate([edges[:1], edges])
    return np.where(count > 0, total / np.maximum(count, 1), border)


def _rising_ratio(
    given_mass: np.ndarray, wrong_mass: np.ndarray, middle: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pool neighbouring bins until given / wrong rises. Returns each block's place, given and wrong mass."""
    blocks: list[tuple[float, float, float]] = []  # given, wrong, sum of places weighted by both
    for given, wrong, place in zip(given_mass, wrong_mass, middle, strict=True):
        if given + wrong == 0:
            continue
        block = (given, wrong, (given + wrong) * place)
        # a / b >= c / d without dividing: the block before is not below this one, so they become one.
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    table = np.array(blocks)  # (blocks, 3)
    return table[:, 2] / (table[:, 0] + table[:, 1]), table[:, 0], table[:, 1]


def separation(given: np.ndarray, wrong: np.ndarray) -> float:
    """The chance that a given pair has a higher statistic than a wrong one; a tie counts half."""
    rising = np.sort(wrong)
    below = np.searchsorted(rising, given, side="left") + np.searchsorted(rising, given, side="right")
    return float(below.mean() / (2 * len(wrong)))
