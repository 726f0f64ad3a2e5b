"""How many of the pairs that are kept are probably still wrong.

Of N pairs with the noise rate r, F are flagged, of which W are expected to be wrong; then r N - W wrong pairs are left.
The lower end takes every flagged pair as wrong and the lowest rate. The upper end takes the highest rate that near
mismatches allow, and a precision that is PRECISION_ERROR lower than expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sremkit.audit.scoring.types import NearMismatches, NoiseRate

PRECISION_ERROR = 0.03


@dataclass(frozen=True)
class Remaining:
    """The kept pairs, and how many of them are wrong: an estimate with a 95 % interval."""

    kept: int
    wrong: float
    low: float
    high: float
    can_tell: bool  # whether the interval is narrow enough to say how many there are

    def sentence(self) -> str:
        if self.kept == 0:
            return "no pair is kept"
        share = f"{self.low:,.0f} to {self.high:,.0f}, {100 * self.high / self.kept:.1f} % at most"
        if self.can_tell:
            return f"of the {self.kept:,} kept pairs about {self.wrong:,.0f} are probably still wrong ({share})"
        return (
            f"of the {self.kept:,} kept pairs about {self.wrong:,.0f} probably have another image's caption; with near "
            f"mismatches it could be {self.low:,.0f} to {self.high:,.0f}, which cannot be told from these vectors"
        )


def estimate_remaining(
    rate: NoiseRate,
    near: NearMismatches | None,
    *,
    total: int,
    flagged: np.ndarray | int,
    expected_wrong: np.ndarray | float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of wrong pairs among those kept: estimate, lower and upper end, each of the shape of `flagged`.

    Args:
        near: what near mismatches could add; None where that was not measured.
        total: number of scored pairs.
        flagged: number of pairs that are not kept; `expected_wrong` of them are wrong.
    """
    flagged, expected_wrong = np.asarray(flagged, dtype=np.float64), np.asarray(expected_wrong, dtype=np.float64)
    kept = total - flagged
    estimate = np.clip(rate.estimate * total - expected_wrong, 0, kept)
    low = np.minimum(np.clip(rate.low * total - flagged, 0, kept), estimate)
    highest = max(rate.high, rate.high if near is None else near.high)
    lowest_wrong = np.maximum(expected_wrong - PRECISION_ERROR * flagged, 0)
    return estimate, low, np.clip(highest * total - lowest_wrong, estimate, kept)


def remaining(
    rate: NoiseRate,
    near: NearMismatches | None,
    *,
    total: int,
    flagged: int,
    expected_wrong: float,
    share_before: float | None = None,
) -> Remaining:
    """The kept pairs, as one figure.

    Args:
        share_before: of wrong pairs, at most, that an audit left by which these pairs were filtered before.
    """
    ends = estimate_remaining(rate, near, total=total, flagged=flagged, expected_wrong=expected_wrong)
    wrong, low, high = (float(end) for end in ends)
    kept = total - flagged
    can_tell = near is None or near.can_tell
    if share_before is not None:
        high, can_tell = min(max(high, share_before * kept), float(kept)), False
    return Remaining(kept, round(wrong, 1), round(low, 1), round(high, 1), can_tell)


def remaining_curve(
    rate: NoiseRate,
    near: NearMismatches | None,
    flagged: Sequence[float],
    precision: Sequence[float | None],
    *,
    total: int,
) -> dict[str, Any]:
    """The share of wrong pairs among those kept, over the threshold, for JSON."""
    flags = np.array(flagged, dtype=np.float64)
    wrong = flags * np.array([0.0 if p is None else p for p in precision])
    ends = estimate_remaining(rate, near, total=total, flagged=flags, expected_wrong=wrong)
    kept = np.maximum(total - flags, 1)
    names = ("left_wrong", "left_low", "left_high")
    return {
        name: [round(float(v), 6) for v in np.where(flags < total, end / kept, 0)]
        for name, end in zip(names, ends, strict=True)
    }
