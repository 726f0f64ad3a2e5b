"""Scores in words, and what the decisions so far say about the audit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from sremkit.audit.decisions import Decision

WORDS = (
    (0.02, "almost certainly a mismatch"),
    (0.1, "very likely a mismatch"),
    (0.4, "probably a mismatch"),
    (0.6, "could be either"),
    (0.9, "probably a match"),
    (0.98, "very likely a match"),
    (math.inf, "almost certainly a match"),
)


def in_words(score: float | None, *, rank_only: bool) -> str:
    """P(match) as a phrase; where scores are ranks, the place among all pairs."""
    if score is None or math.isnan(score):
        return "no score"
    if rank_only:
        return f"in the lowest {max(1, math.ceil(100 * score))} % of all pairs"
    return next(words for limit, words in WORDS if score < limit)


class Precision(NamedTuple):
    """The fraction of mismatches among decided pairs that the audit flagged, with a 95 % interval."""

    flagged: int  # decided pairs that the audit flagged
    confirmed: int  # of these, those that a person found to mismatch
    estimate: float | None
    low: float
    high: float


def precision(decided: Iterable[tuple[Decision, bool]]) -> Precision:
    """From decisions, each with whether the pair was flagged.

    Pairs with an edited caption do not count, because the given one may have been nearly right.
    """
    matches = [d.is_match for d, flagged in decided if flagged and d.is_match is not None]
    wrong = matches.count(False)
    low, high = wilson_interval(wrong, len(matches))
    return Precision(len(matches), wrong, wrong / len(matches) if matches else None, low, high)


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927)."""
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    center = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return max(center - half, 0.0), min(center + half, 1.0)
