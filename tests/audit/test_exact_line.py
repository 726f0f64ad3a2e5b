"""The line between mismatches and the others is found without holding the scores, and is the very same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sremkit.audit.choice import mismatches_at
from sremkit.audit.exact_line import line_of
from sremkit.audit.stages import Choice

shares = st.floats(0, 1)
# Few different values, so that ties are frequent, beside numbers of every size.
scores = st.lists(st.one_of(st.sampled_from([0.0, 1e-300, 1e-9, 0.25, 0.5, 1.0]), shares), min_size=1)


def in_pieces(score: np.ndarray):
    return lambda: iter(np.array_split(score, 3))


@settings(deadline=None, max_examples=200)
@given(score=scores, share=shares, rule=st.sampled_from(["precision", "fraction", "threshold"]))
def test_the_line_calls_the_pairs_that_all_scores_together_would_call(score, share, rule) -> None:
    score = np.array(score)
    line = line_of(in_pieces(score), Choice(**{rule: share}))
    np.testing.assert_array_equal(score < line, mismatches_at(score, **{rule: share}))


def test_a_line_among_scores_that_are_next_to_each_other_is_found() -> None:
    # Ten doubles in a row: they differ in the last bits alone, and 30 % of them are three.
    score = np.array([np.float64(1e-8)] * 10)
    for k in range(1, 10):
        score[k] = np.nextafter(score[k - 1], 1)
    assert line_of(in_pieces(score[::-1].copy()), Choice(fraction=0.3)) == score[3]


def test_the_lines_of_a_worked_example() -> None:
    # The means of 1 - score are 0.9, (0.9 + 0.8) / 2 = 0.85, (0.9 + 0.8 + 0.4) / 3 = 0.7: two keep 0.8.
    score = np.array([0.6, 0.1, 0.2])
    assert line_of(in_pieces(score), Choice(precision=0.8)) == 0.6
    assert line_of(in_pieces(score), Choice(precision=0.95)) == 0.1  # not even the worst one
    assert line_of(in_pieces(score), Choice(fraction=1.0)) == np.inf


def test_without_scores_nothing_is_called() -> None:
    assert line_of(lambda: iter([np.zeros(0)]), Choice(precision=0.9)) == pytest.approx(np.inf)
