"""Expected precision and recall over the threshold: what another cutoff would flag.

With p_k the match probability of pair k, flagging every pair with p_k <= t has

    expected precision(t) = mean of 1 - p_k over the flagged pairs
    expected recall(t)    = sum of 1 - p_k over the flagged pairs / sum over all pairs

Both hold as far as the probabilities are calibrated. Scores are counted in bins of 2^-20, so a stream of chunks needs
the memory of the bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

BINS = 1 << 20
NUM_POINTS = 101


class ThresholdCurve:
    """Counts match probabilities in [0, 1], given in chunks."""

    def __init__(self, chunks: Iterable[np.ndarray]) -> None:
        counts, wrong = np.zeros(BINS + 1, dtype=np.int64), np.zeros(BINS + 1)
        for score in chunks:
            bins = _bins(score)
            counts += np.bincount(bins, minlength=BINS + 1)
            wrong += np.bincount(bins, weights=1 - score, minlength=BINS + 1)
        self._flagged, self._wrong = np.cumsum(counts), np.cumsum(wrong)

    def at(self, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected precision and recall of flagging each of these scores and all lower ones; NaN for NaN."""
        known = np.isfinite(score)
        bins = _bins(np.where(known, score, 0.0))
        precision = self._wrong[bins] / np.maximum(self._flagged[bins], 1)
        recall = self._wrong[bins] / max(self._wrong[-1], 1e-12)
        return np.where(known, precision, np.nan), np.where(known, np.minimum(recall, 1.0), np.nan)

    def points(self) -> dict[str, list[Any]]:
        """The curve at thresholds from 0 to 1, for JSON; None where nothing is flagged."""
        threshold = np.linspace(0, 1, NUM_POINTS)
        precision, recall = self.at(threshold)
        flagged = self._flagged[_bins(threshold)]
        return {
            "threshold": [round(float(t), 4) for t in threshold],
            "flagged": flagged.tolist(),
            "expected_precision": [round(float(p), 6) if n else None for p, n in zip(precision, flagged, strict=True)],
            "expected_recall": [round(float(r), 6) for r in recall],
        }


def _bins(score: np.ndarray) -> np.ndarray:
    return (np.clip(score, 0.0, 1.0) * BINS).astype(np.int64)
