"""Which scores a rule flags, by sorting all of them."""

from __future__ import annotations

import numpy as np


def flagged(
    score: np.ndarray,
    *,
    precision: float | None = None,
    fraction: float | None = None,
    threshold: float | None = None,
) -> np.ndarray:
    if threshold is not None:
        return score < threshold
    rising = np.sort(score)
    if fraction is not None:
        count = int(np.floor(fraction * len(score) + 1e-9))
    else:
        assert precision is not None
        expected = np.cumsum(1 - rising) / np.arange(1, len(score) + 1)  # falls as more pairs are flagged
        count = int(np.count_nonzero(expected >= precision - 1e-12))
    if count == len(score):
        return np.ones(len(score), dtype=bool)
    return score < rising[count]  # the first score that is not flagged, and with it all that tie
