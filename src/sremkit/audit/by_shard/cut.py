"""Where the line between mismatches and the others is drawn, from a histogram instead of all scores.

Scores of any number of pairs are counted in bins of 2^-22, so the line lies at most that far below the one that all
scores in one array would give, and never above it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sremkit.audit.stages import Choice

BINS = 1 << 22


@dataclass(eq=False)
class ScoreCounts:
    """How many pairs have which score."""

    count: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    wrong: np.ndarray = field(default_factory=lambda: np.zeros(BINS))  # sum of 1 - score in each bin

    def add(self, score: np.ndarray) -> None:
        bins = np.minimum((score * BINS).astype(np.int64), BINS - 1)
        np.add.at(self.count, bins, 1)
        np.add.at(self.wrong, bins, 1 - score)

    def line(self, choice: Choice) -> float:
        """Scores below this are mismatches by the choice."""
        if choice.threshold is not None:
            return choice.threshold
        filled = np.flatnonzero(self.count)
        called = np.cumsum(self.count[filled])
        if len(filled) == 0:
            return 0.0
        if choice.fraction is not None:
            allowed = called <= np.floor(choice.fraction * called[-1] + 1e-9)
        else:
            assert choice.precision is not None
            allowed = np.cumsum(self.wrong[filled]) / called >= choice.precision - 1e-12
        bins = int(np.count_nonzero(allowed))  # both fall as more is called
        if bins == len(filled):
            return np.inf
        # Nothing lies between the last called bin and the first that is not.
        return float(filled[bins]) / BINS
