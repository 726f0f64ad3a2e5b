"""Flagging mismatches by expected precision, fraction or threshold, from an array or from a stream of scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import cutoff as oracle
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import NoiseRate, PairScores
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError, UserError

FRACTIONS = st.floats(0, 1)
# Few distinct values, so that ties are frequent, and numbers of every size.
SCORES = st.lists(
    st.one_of(st.sampled_from([0.0, 1e-300, 1e-9, 0.25, 0.5, 1.0]), FRACTIONS), min_size=1, max_size=40
).map(np.array)


def in_chunks(score: np.ndarray):
    return lambda: iter(np.array_split(score, 3))


@settings(deadline=None, max_examples=200)
@given(score=SCORES, value=FRACTIONS, rule=st.sampled_from(["precision", "fraction", "threshold"]))
def test_an_array_and_a_stream_flag_what_sorting_all_scores_flags(score, value, rule) -> None:
    expected = oracle.flagged(score, **{rule: value})
    np.testing.assert_array_equal(CutoffRule(**{rule: value}).flag(score), expected)
    np.testing.assert_array_equal(score < CutoffRule(**{rule: value}).cutoff(in_chunks(score)), expected)


def test_precision_flags_as_many_as_keep_the_expected_precision() -> None:
    # Lowest first: 1 - score is 1.0, 0.9, 0.5, 0.1; the running means are 1.0, 0.95, 0.8, 0.625.
    score = np.array([0.5, 0.0, 0.9, 0.1])
    assert CutoffRule(precision=0.95).flag(score).tolist() == [False, True, False, True]
    assert CutoffRule(precision=0.8).flag(score).tolist() == [True, True, False, True]
    assert CutoffRule(precision=0.6).flag(score).tolist() == [True, True, True, True]


def test_no_pair_is_flagged_where_none_is_wrong_enough() -> None:
    assert not CutoffRule(precision=0.9).flag(np.array([0.3, 0.8])).any()


def test_fraction_flags_the_lowest_scores() -> None:
    score = np.array([0.4, 0.1, 0.3, 0.2])
    assert CutoffRule(fraction=0.5).flag(score).tolist() == [False, True, False, True]
    assert CutoffRule(fraction=0.0).flag(score).tolist() == [False] * 4
    assert CutoffRule(fraction=1.0).flag(score).tolist() == [True] * 4


def test_a_fraction_is_not_lost_to_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996 in floating point; 29 pairs are meant.
    assert CutoffRule(fraction=0.29).flag(np.linspace(0, 1, 100)).sum() == 29


def test_pairs_that_tie_are_flagged_together_or_not_at_all() -> None:
    # Two of four are wanted, but the second and the third lowest cannot be told apart.
    flags = CutoffRule(fraction=0.5).flag(np.array([0.2, 0.5, 0.5, 0.9]))
    assert flags.tolist() == [True, False, False, False]


def test_threshold_flags_what_is_strictly_below() -> None:
    assert CutoffRule(threshold=0.5).flag(np.array([0.2, 0.5, 0.7])).tolist() == [True, False, False]


def test_pairs_without_a_score_are_never_flagged_and_not_counted() -> None:
    score = np.array([np.nan, 0.1, 0.2, np.nan])
    assert CutoffRule(fraction=0.5).flag(score).tolist() == [False, True, False, False]
    assert CutoffRule(threshold=1.0).flag(score).tolist() == [False, True, True, False]


def test_the_cutoffs_of_a_worked_example() -> None:
    # The means of 1 - score are 0.9, (0.9 + 0.8) / 2 = 0.85, (0.9 + 0.8 + 0.4) / 3 = 0.7: two keep 0.8.
    score = np.array([0.6, 0.1, 0.2])
    assert CutoffRule(precision=0.8).cutoff(in_chunks(score)) == 0.6
    assert CutoffRule(precision=0.95).cutoff(in_chunks(score)) == 0.1  # not even the worst one
    assert CutoffRule(fraction=1.0).cutoff(in_chunks(score)) == np.inf


def test_the_cutoffs_of_a_worked_example_with_ties() -> None:
    # Expected precision of the worst 1, 3, 4 and 5: 1, (1 + 1.5) / 3 = 0.833, 3 / 4 = 0.75, 3 / 5 = 0.6
    score = in_chunks(np.array([0.0, 0.25, 0.25, 0.5, 1.0]))
    assert CutoffRule(precision=0.9).cutoff(score) == 0.25
    assert CutoffRule(precision=0.8).cutoff(score) == 0.5
    assert CutoffRule(precision=0.7).cutoff(score) == 1.0
    assert CutoffRule(precision=0.6).cutoff(score) == np.inf
    assert CutoffRule(fraction=0.2).cutoff(score) == 0.25
    assert CutoffRule(fraction=0.59).cutoff(score) == 0.25  # 2 of 5, and the two at 0.25 tie
    assert CutoffRule(fraction=0.6).cutoff(score) == 0.5
    assert CutoffRule(threshold=0.3).cutoff(score) == 0.3


def test_a_cutoff_between_neighbouring_doubles_is_exact() -> None:
    # Ten doubles in a row: they differ in the last bits alone, and 30 % of them are three.
    score = np.array([np.float64(1e-8)] * 10)
    for k in range(1, 10):
        score[k] = np.nextafter(score[k - 1], 1)
    assert CutoffRule(fraction=0.3).cutoff(in_chunks(score[::-1].copy())) == score[3]


def test_without_scores_nothing_is_flagged() -> None:
    assert CutoffRule(precision=0.9).cutoff(lambda: iter([np.zeros(0)])) == 0.0
    assert CutoffRule(precision=0.9).flag(np.zeros(0)).tolist() == []


@settings(deadline=None, derandomize=True)
@given(SCORES, st.floats(0.01, 0.99))
def test_the_flagged_pairs_are_the_lowest_and_keep_the_precision(score: np.ndarray, precision: float) -> None:
    flags = CutoffRule(precision=precision).flag(score)
    if flags.any() and not flags.all():
        assert score[flags].max() < score[~flags].min()
    if flags.any():
        assert (1 - score[flags]).mean() >= precision - 1e-12


@settings(deadline=None, derandomize=True)
@given(SCORES, st.floats(0.01, 0.98))
def test_a_lower_precision_never_flags_fewer(score: np.ndarray, precision: float) -> None:
    strict, lenient = (CutoffRule(precision=p).flag(score) for p in (precision + 0.01, precision))
    assert (lenient | ~strict).all()


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({}, "give one of precision, fraction and threshold, not none"),
        ({"precision": 0.9, "fraction": 0.1}, "not precision and fraction"),
        ({"precision": 95.0}, "precision must lie between 0 and 1, got 95.0"),
        ({"fraction": -0.1}, "fraction must lie between 0 and 1"),
    ],
)
def test_an_unusable_rule_is_refused_in_words(rules: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CutoffRule(**rules)


@pytest.mark.parametrize("score", [1.5, -0.1])
def test_what_is_no_probability_is_refused(score: float) -> None:
    with pytest.raises(DataError, match="probabilities between 0 and 1"):
        CutoffRule(precision=0.9).flag(np.array([0.5, score]))


def test_uncalibrated_scores_are_flagged_by_a_fraction_and_not_by_a_precision() -> None:
    numbers, zeros = np.ones(3, dtype=np.int64), np.zeros(3, dtype=np.float32)
    fold = np.array([0, 1, MISSING])  # the last pair has no score of its own
    arrays = (zeros, zeros, numbers, numbers, numbers, numbers, fold)
    for rate, flagged in ((None, 0), (NoiseRate(0.3, 0.2, 0.4), 1)):
        scores = PairScores(np.array([0.0, 0.9, 0.0]), *arrays, candidates=3, noise_rate=rate, note="")
        assert scores.flag(CutoffRule(precision=0.95)).sum() == flagged
        assert scores.flag(CutoffRule(fraction=0.5)).tolist() == [True, False, False]
