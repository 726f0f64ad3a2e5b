"""The upper bound with near mismatches: it holds the truth, and falls to the random rate where nothing near fits."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.audit.scoring.near_bound import bound_near_mismatches, upper_bound
from sremkit.audit.scoring.negatives import NEAR_KINDS
from sremkit.audit.scoring.types import NoiseRate

RNG = np.random.default_rng(0)
NULL, NEAR = RNG.normal(0, 1, 20_000), RNG.normal(2, 1, 4_000)


def given(random: float, near: float, *, match: float = 5.0, count: int = 4_000) -> np.ndarray:
    """Statistics of pairs: random mismatches about 0, near ones about 2, matched pairs about `match`."""
    rng = np.random.default_rng(1)
    numbers = round(random * count), round(near * count)
    parts = [(0.0, numbers[0]), (2.0, numbers[1]), (match, count - sum(numbers))]
    return np.concatenate([rng.normal(mean, 1, size) for mean, size in parts])


@pytest.mark.parametrize(("random", "near"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.2, 0.2)])
def test_the_bound_is_above_the_truth_and_not_far_above(random: float, near: float) -> None:
    bound = upper_bound(given(random, near), NULL, NEAR, np.ones(len(NEAR)), effective=4_000)
    assert random + near <= bound < random + near + 0.1


def test_where_matched_pairs_look_like_near_mismatches_everything_is_possible() -> None:
    bound = upper_bound(given(0.1, 0.0, match=2.0), NULL, NEAR, np.ones(len(NEAR)), effective=4_000)
    assert bound > 0.9


def test_fewer_pairs_give_a_higher_bound() -> None:
    high, low = (
        upper_bound(given(0.0, 0.2), NULL, NEAR, np.ones(len(NEAR)), effective=effective) for effective in (100, 4_000)
    )
    assert high > low + 0.02


def test_negatives_that_were_made_of_mismatched_pairs_do_not_count() -> None:
    mixed, weight = np.concatenate([NEAR, NULL[:4_000]]), np.repeat([1.0, 0.0], 4_000)
    pure, weighted = (
        upper_bound(given(0.1, 0.1), NULL, values, w, effective=4_000)
        for values, w in ((NEAR, np.ones(len(NEAR))), (mixed, weight))
    )
    assert weighted == pytest.approx(pure, abs=1e-9)


def test_the_interval_reaches_from_the_random_rate_to_the_highest_bound() -> None:
    rate = NoiseRate(0.1, 0.08, 0.12)
    near, kind = np.concatenate([NEAR, NULL[:4_000]]), np.repeat([0, 2], 4_000)
    found = bound_near_mismatches(rate, given(0.1, 0.0), NULL, near, kind, np.ones(len(near)), effective=4_000)
    assert (found.low, found.can_tell) == (0.08, True)
    assert set(found.by_kind) == {NEAR_KINDS[0], NEAR_KINDS[2]}
    assert found.high == max(found.by_kind.values()) >= rate.high


def test_a_wide_interval_says_that_it_cannot_tell() -> None:
    rate = NoiseRate(0.1, 0.08, 0.12)
    kind = np.zeros(len(NEAR), dtype=np.int64)
    found = bound_near_mismatches(
        rate, given(0.1, 0.0, match=2.0), NULL, NEAR, kind, np.ones(len(NEAR)), effective=4_000
    )
    assert not found.can_tell
    assert "cannot tell" in found.sentence()


def test_without_near_negatives_nothing_is_excluded() -> None:
    nothing = np.zeros(0)
    found = bound_near_mismatches(NoiseRate(0.1, 0.1, 0.1), NULL, NULL, nothing, nothing, nothing, effective=100)
    assert (found.high, found.can_tell) == (1.0, False)
