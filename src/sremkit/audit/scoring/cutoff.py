"""Which pairs to flag as mismatches: those whose score lies below a cutoff, which a rule derives from all scores.

`match_probability` is 1 where a pair matches for certain, so low is bad. Exactly one rule applies:

    threshold   the cutoff itself
    fraction    flag the lowest scores, at most this fraction of all pairs
    precision   flag as many of the lowest scores as keep the expected precision, mean(1 - score), at this value

Pairs of equal score are flagged together or not at all. The cutoff is an exact selection by radix: non-negative
doubles are ordered like their bits, so each of four passes counts scores by their next 16 bits and descends into the
bin in which the cutoff lies. So a stream of chunks needs the memory of 65,536 counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from sremkit.errors import DataError, UserError

DEFAULT_PRECISION = 0.95
DIGIT = 16  # bits that one pass looks at
BINS = 1 << DIGIT

Chunks = Callable[[], Iterable[np.ndarray]]  # each call iterates over all scores anew


@dataclass(frozen=True)
class CutoffRule:
    """Decides from scores in [0, 1] which pairs to flag, by exactly one of its settings."""

    precision: float | None = None
    fraction: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        given = self.as_dict()
        if len(given) != 1:
            raise UserError(f"give one of precision, fraction and threshold, not {' and '.join(given) or 'none'}")
        for name, value in given.items():
            if not 0 <= value <= 1:
                raise UserError(f"{name} must lie between 0 and 1, got {value}; 0.95 means 95 %")

    @classmethod
    def of(cls, precision: float | None, fraction: float | None, threshold: float | None) -> CutoffRule:
        """The rule that is given; an expected precision of 0.95 where none is."""
        if precision is None and fraction is None and threshold is None:
            precision = DEFAULT_PRECISION
        return cls(precision, fraction, threshold)

    def as_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def applies(self, noise_rate: object | None) -> bool:
        """Whether pairs can be flagged: an expected precision needs calibrated scores, hence a noise rate."""
        return noise_rate is not None or self.precision is None

    def flag(self, score: np.ndarray) -> np.ndarray:
        """Which of these scores are flagged: (m,) bool; a pair without a score (NaN) never is."""
        score = np.asarray(score, dtype=np.float64)
        known = np.isfinite(score)
        cutoff = self.cutoff(lambda: [score[known]])
        return known & (np.where(known, score, np.inf) < cutoff)

    def cutoff(self, chunks: Chunks) -> float:
        """The exact cutoff: scores below it are flagged. 0 without scores, infinity where all are flagged.

        Args:
            chunks: returns an iterable over all scores, finite and in [0, 1], each time it is called.
        """
        if self.threshold is not None:
            return self.threshold
        total = sum(len(chunk) for chunk in chunks())
        if total == 0:
            return 0.0
        prefix = 0  # the leading bits of the cutoff, as far as they are found
        flagged, wrong = 0, 0.0  # scores below: their number, and the sum of 1 - score
        for shift in (48, 32, 16, 0):
            counts, wrongs = _count(chunks(), prefix, shift)
            if self.fraction is not None:
                # 0.29 * 100 is 28.999...
                allowed = flagged + np.cumsum(counts) <= np.floor(self.fraction * total + 1e-9)
            else:
                assert self.precision is not None
                precision = (wrong + np.cumsum(wrongs)) / np.maximum(flagged + np.cumsum(counts), 1)
                allowed = precision >= self.precision - 1e-12  # a mean of 0.8 may round below it
            beyond = np.flatnonzero(~allowed & (counts > 0))
            if len(beyond) == 0:  # all that is left may be flagged
                return np.inf if shift == 48 else _as_float((prefix + 1) << (shift + DIGIT))
            first = int(beyond[0])
            flagged += int(counts[:first].sum())
            wrong += float(wrongs[:first].sum())
            prefix = (prefix << DIGIT) | first
        return _as_float(prefix)


def _count(chunks: Iterable[np.ndarray], prefix: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the scores whose bits begin with `prefix`: count and sum of 1 - score for each value of the next digit."""
    counts, wrongs = np.zeros(BINS, dtype=np.int64), np.zeros(BINS)
    for chunk in chunks:
        score = np.ascontiguousarray(np.abs(chunk), dtype=np.float64)  # there is a zero with a minus sign too
        if len(score) and not (np.isfinite(score).all() and np.min(chunk) >= 0 and score.max() <= 1):
            raise DataError("scores are probabilities between 0 and 1 that a pair matches; got others")
        bits = score.view(np.int64) >> shift
        inside = bits >> DIGIT == prefix
        digits = bits[inside] & (BINS - 1)
        counts += np.bincount(digits, minlength=BINS)
        wrongs += np.bincount(digits, weights=1 - score[inside], minlength=BINS)
    return counts, wrongs


def _as_float(bits: int) -> float:
    return float(np.array([bits], dtype=np.int64).view(np.float64)[0])
