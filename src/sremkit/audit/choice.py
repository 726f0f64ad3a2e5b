"""Which pairs to call mismatches: the most suspicious ones, so many as a precision, a share or a score allows."""

from __future__ import annotations

import numpy as np

from sremkit.errors import DataError


def mismatches_at(
    verdicts_score: np.ndarray,
    *,
    precision: float | None = None,
    fraction: float | None = None,
    threshold: float | None = None,
) -> np.ndarray:
    """The pairs to call mismatches, (m,) bool, by exactly one rule. Pairs of equal score share their fate.

    Args:
        verdicts_score: (m,) how likely each pair is right.
        precision: as many of the lowest scores as keep the expected share of wrong pairs among them, which is
            the mean of 1 - score, at this value or above.
        fraction: the lowest scores, at most this share of all pairs.
        threshold: all scores below this one.
    """
    score = np.asarray(verdicts_score, dtype=np.float64)
    _check(score, precision=precision, fraction=fraction, threshold=threshold)
    if threshold is not None:
        return score < threshold
    rising = np.sort(score)
    if fraction is not None:
        called = int(np.floor(fraction * len(score) + 1e-9))  # 0.29 * 100 is 28.999...
    else:
        assert precision is not None
        expected = np.cumsum(1 - rising) / np.arange(1, len(score) + 1)  # falls as more pairs are called
        called = int(np.count_nonzero(expected >= precision - 1e-12))  # a mean of 0.8 may round below it
    if called == 0:
        return np.zeros(len(score), dtype=bool)
    if called == len(score):
        return np.ones(len(score), dtype=bool)
    # The first score that is not called: whoever ties with it is not called either.
    return score < rising[called]


def _check(score: np.ndarray, **rules: float | None) -> None:
    if score.ndim != 1 or len(score) == 0:
        raise DataError(f"give one score for each pair, got an array of shape {score.shape}")
    if not (np.isfinite(score).all() and score.min() >= 0 and score.max() <= 1):
        raise DataError("scores are probabilities between 0 and 1 that a pair is right; got others")
    given = {name: value for name, value in rules.items() if value is not None}
    if len(given) != 1:
        named = " and ".join(given) or "none"
        raise DataError(f"give one of precision, fraction and threshold to choose by; got {named}")
    name, value = next(iter(given.items()))
    if not 0 <= value <= 1:
        raise DataError(f"{name} is a share between 0 and 1, got {value}; 0.95 means 95 %")
