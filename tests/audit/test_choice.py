"""Calling mismatches: by expected precision, by share, by score."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sremkit.audit.choice import mismatches_at
from sremkit.errors import DataError

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


def test_precision_calls_as_many_as_keep_the_expected_share_of_wrong_pairs() -> None:
    # Lowest first: 1 - score is 1.0, 0.9, 0.5, 0.1; the running means are 1.0, 0.95, 0.8, 0.625.
    score = np.array([0.5, 0.0, 0.9, 0.1])
    assert mismatches_at(score, precision=0.95).tolist() == [False, True, False, True]
    assert mismatches_at(score, precision=0.8).tolist() == [True, True, False, True]
    assert mismatches_at(score, precision=0.6).tolist() == [True, True, True, True]


def test_no_pair_is_called_where_none_is_wrong_enough() -> None:
    assert not mismatches_at(np.array([0.3, 0.8]), precision=0.9).any()


def test_fraction_calls_the_lowest_scores() -> None:
    score = np.array([0.4, 0.1, 0.3, 0.2])
    assert mismatches_at(score, fraction=0.5).tolist() == [False, True, False, True]
    assert mismatches_at(score, fraction=0.0).tolist() == [False] * 4
    assert mismatches_at(score, fraction=1.0).tolist() == [True] * 4


def test_a_fraction_is_not_lost_to_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996 in floating point; 29 pairs are meant.
    assert mismatches_at(np.linspace(0, 1, 100), fraction=0.29).sum() == 29


def test_pairs_that_tie_share_their_fate() -> None:
    # Two of four are wanted, but the second and the third lowest cannot be told apart.
    assert mismatches_at(np.array([0.2, 0.5, 0.5, 0.9]), fraction=0.5).tolist() == [True, False, False, False]


def test_threshold_calls_what_is_strictly_below() -> None:
    assert mismatches_at(np.array([0.2, 0.5, 0.7]), threshold=0.5).tolist() == [True, False, False]


@settings(deadline=None, derandomize=True)
@given(SCORES, st.floats(0.01, 0.99))
def test_the_called_pairs_are_the_lowest_and_keep_the_promise(score: np.ndarray, precision: float) -> None:
    called = mismatches_at(score, precision=precision)
    if called.any() and not called.all():
        assert score[called].max() < score[~called].min()
    if called.any():
        assert (1 - score[called]).mean() >= precision - 1e-12


@settings(deadline=None, derandomize=True)
@given(SCORES, st.floats(0.01, 0.98))
def test_a_lower_precision_never_calls_fewer(score: np.ndarray, precision: float) -> None:
    strict, lenient = (
        mismatches_at(score, precision=precision + 0.01),
        mismatches_at(score, precision=precision),
    )
    assert (lenient | ~strict).all()


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({}, "give one of precision, fraction and threshold to choose by; got none"),
        ({"precision": 0.9, "fraction": 0.1}, "got precision and fraction"),
        ({"precision": 95.0}, "precision is a share between 0 and 1, got 95.0"),
        ({"fraction": -0.1}, "fraction is a share between 0 and 1"),
    ],
)
def test_an_unusable_rule_is_refused_in_words(rules: dict[str, float], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        mismatches_at(np.array([0.5]), **rules)


@pytest.mark.parametrize("score", [[], [[0.5]], [np.nan], [1.5], [-0.1]])
def test_what_is_no_score_is_refused(score: list) -> None:
    with pytest.raises(DataError):
        mismatches_at(np.array(score), precision=0.9)
