"""Where the line between mismatches and the others lies, found without holding the scores in memory.

Numbers that are not negative are ordered like the bits they are stored in. So the line is found sixteen bits at a
time: each pass counts the scores by their next sixteen bits and goes on in the one bin that the line runs through.
After four passes it is exact, and no more than 65,536 counts were in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from sremkit.audit.stages import Choice

DIGIT = 16  # bits that are looked at in one pass
BINS = 1 << DIGIT


def line_of(scores: Callable[[], Iterable[np.ndarray]], choice: Choice) -> float:
    """The line below which `choice` calls scores mismatches; the same pairs as `mismatches_at` calls.

    Args:
        scores: gives all scores in pieces, each time it is called; finite, between 0 and 1.
    """
    if choice.threshold is not None:
        return choice.threshold
    total = sum(len(piece) for piece in scores())
    prefix, called, wrong = 0, 0, 0.0
    for shift in (48, 32, 16, 0):
        counts, wrongs = _count(scores(), prefix, shift)
        if choice.fraction is not None:
            allowed = called + np.cumsum(counts) <= np.floor(choice.fraction * total + 1e-9)
        else:
            assert choice.precision is not None
            expected = (wrong + np.cumsum(wrongs)) / np.maximum(called + np.cumsum(counts), 1)
            allowed = expected >= choice.precision - 1e-12
        beyond = np.flatnonzero(~allowed & (counts > 0))
        if len(beyond) == 0:  # everything that is left may be called
            return np.inf if shift == 48 else _as_number((prefix + 1) << (shift + DIGIT))
        first = int(beyond[0])
        called += int(counts[:first].sum())
        wrong += float(wrongs[:first].sum())
        prefix = (prefix << DIGIT) | first
    return _as_number(prefix)


def _count(scores: Iterable[np.ndarray], prefix: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """How many scores there are for each next digit behind `prefix`, and the sums of 1 - score."""
    counts, wrongs = np.zeros(BINS, dtype=np.int64), np.zeros(BINS)
    for piece in scores:
        piece = np.ascontiguousarray(np.abs(piece), dtype=np.float64)  # there is a zero with a minus sign too
        digits = piece.view(np.int64) >> shift
        piece, digits = piece[digits >> DIGIT == prefix], digits[digits >> DIGIT == prefix] & (BINS - 1)
        counts += np.bincount(digits, minlength=BINS)
        wrongs += np.bincount(digits, weights=1 - piece, minlength=BINS)
    return counts, wrongs


def _as_number(bits: int) -> float:
    return float(np.array([bits], dtype=np.int64).view(np.float64)[0])
