"""Wrong pairs among those that are kept, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.audit.scoring.remaining_mismatches import Remaining, remaining, remaining_curve
from sremkit.audit.scoring.types import NearMismatches, NoiseRate

RATE = NoiseRate(0.3, 0.25, 0.35)
NEAR = NearMismatches(0.25, 0.4, {}, can_tell=True)


def test_what_is_left_is_the_rate_without_what_was_flagged() -> None:
    # Of 1,000 pairs 300 are wrong; 200 are flagged, 190 of them rightly: 110 are left among 800. With the lowest rate
    # and all 200 wrong: 250 - 200 = 50. With the highest rate and three points less precision: 400 - 184 = 216.
    assert remaining(RATE, NEAR, total=1000, flagged=200, expected_wrong=190) == Remaining(800, 110, 50, 216, True)
    without_near = remaining(RATE, None, total=1000, flagged=200, expected_wrong=190)
    assert (without_near.high, without_near.can_tell) == (166, True)


def test_nothing_is_left_where_more_was_flagged_than_is_wrong() -> None:
    found = remaining(NoiseRate(0.01, 0.0, 0.02), None, total=100, flagged=10, expected_wrong=9)
    assert (found.wrong, found.low, found.high) == (0, 0, 0)


def test_pairs_that_were_filtered_before_are_not_called_clean() -> None:
    clean = NoiseRate(0.0, 0.0, 0.01)
    found = remaining(clean, NEAR, total=1000, flagged=0, expected_wrong=0, share_before=0.5)
    assert (found.high, found.can_tell) == (500, False)
    assert "cannot be told" in found.sentence()


def test_the_curve_falls_as_more_is_flagged() -> None:
    curve = remaining_curve(RATE, NEAR, [0, 200, 1000], [None, 0.95, 0.3], total=1000)
    assert curve["left_wrong"] == [pytest.approx(0.3), pytest.approx(110 / 800), 0]
    assert curve["left_high"][:2] == [pytest.approx(0.4), pytest.approx(216 / 800)]
    assert all(np.array(curve["left_low"]) <= np.array(curve["left_wrong"]))
