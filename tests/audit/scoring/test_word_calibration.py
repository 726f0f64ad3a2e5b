"""From worst words to scores: both kinds of wrong pairs are separated from the right ones, and counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sremkit.audit.scoring.types import NoiseRate
from sremkit.audit.scoring.word_calibration import WORDS_UNCLEAR, WordScores, add_words, join_likelihood

COUNT = 6000


def made_words(*, distance: float, rate: float, seed: int = 0) -> tuple[WordScores, np.ndarray]:
    """The worst words of right pairs lie `distance` above those of edited ones; `rate` of the given are edited."""
    rng = np.random.default_rng(seed)
    is_edited = rng.random(COUNT) < rate
    worst = rng.normal(size=COUNT) + np.where(is_edited, 0.0, distance)
    fit = rng.normal(size=COUNT)
    null_likelihood, edited_worst = rng.normal(size=(2, COUNT))
    return WordScores(fit, worst, null_likelihood, np.arange(COUNT), fit, edited_worst), is_edited


def scored(
    words: WordScores,
    *,
    not_shuffled: np.ndarray | None = None,
    edited_not_shuffled: np.ndarray | None = None,
    rate: float = 0.0,
):
    sure = np.ones(COUNT) if not_shuffled is None else not_shuffled
    of_edited = sure if edited_not_shuffled is None else edited_not_shuffled
    rank = np.linspace(0, 1, COUNT)
    return add_words([words], sure, of_edited, rank, NoiseRate(rate, rate, rate), np.arange(COUNT))


def test_the_share_of_edited_texts_is_found_and_the_scores_add_up_to_it() -> None:
    words, is_edited = made_words(distance=4.0, rate=0.25)
    score, rate, note = scored(words)
    assert note == ""
    assert rate.estimate == pytest.approx(is_edited.mean(), abs=0.03)
    assert rate.low <= is_edited.mean() <= rate.high
    assert (1 - score).mean() == pytest.approx(rate.estimate, abs=0.02)
    flagged = score < 0.5
    assert is_edited[flagged].mean() > 0.9
    assert flagged[is_edited].mean() > 0.9


def test_a_pair_is_wrong_in_one_way_or_the_other() -> None:
    words, is_edited = made_words(distance=6.0, rate=0.25)
    is_shuffled = np.random.default_rng(1).random(COUNT) < 0.2
    worst = np.where(is_shuffled, words.worst - 8.0, words.worst)  # of shuffled pairs no word fits
    edited = np.where(is_shuffled, words.edited_worst - 8.0, words.edited_worst)
    words = replace(words, worst=worst, edited_worst=edited)
    score, rate, _ = scored(words, not_shuffled=(~is_shuffled).astype(float), rate=0.2)
    assert rate.estimate == pytest.approx(1 - 0.8 * 0.75, abs=0.03)  # = 0.4
    assert score[is_shuffled].max() < 0.01
    assert (score[~is_shuffled & ~is_edited] > 0.5).mean() > 0.95
    assert (score[~is_shuffled & is_edited] < 0.5).mean() > 0.95


def test_words_that_do_not_separate_leave_the_scores_as_they_were() -> None:
    words, _ = made_words(distance=0.5, rate=0.25)
    not_shuffled = np.random.default_rng(2).random(COUNT)
    score, rate, note = scored(words, not_shuffled=not_shuffled, rate=0.3)
    assert note == WORDS_UNCLEAR
    assert rate.estimate == 0.3
    np.testing.assert_allclose(score, not_shuffled, atol=1e-3)


def test_a_likelihood_that_separates_helps_and_one_that_does_not_is_ignored() -> None:
    rng = np.random.default_rng(0)
    given, wrong = rng.normal(size=COUNT) + 2, rng.normal(size=COUNT)
    empty, no_rows = np.zeros(0), np.zeros(0, dtype=np.int64)

    def separated(fit: np.ndarray) -> float:
        words = WordScores(fit, empty, rng.normal(size=COUNT), no_rows, empty, empty)
        of_given, of_null, _ = join_likelihood(given, wrong, words)
        assert of_null.mean() == pytest.approx(0, abs=1e-9)
        assert of_null.std() == pytest.approx(1)
        return float(of_given.mean())

    # Two independent statistics at distance 2 and variance 1, joined: 2 · √2 standard deviations.
    assert separated(rng.normal(size=COUNT) + 2) == pytest.approx(2 * np.sqrt(2), rel=0.05)
    assert separated(rng.normal(size=COUNT) - 1) == pytest.approx(2, rel=0.05)


def test_a_text_without_slots_is_not_moved_by_its_words() -> None:
    rng = np.random.default_rng(0)
    given, wrong = np.array([1.0, 1.0, 1.0, 3.0]), rng.normal(size=50)
    fit = np.array([np.nan, -1.0, 6.0, 3.0])
    no_rows = np.zeros(0, dtype=np.int64)
    words = WordScores(fit, np.zeros(4), rng.normal(size=50), no_rows, np.zeros(0), np.zeros(0))
    joined = join_likelihood(given, wrong, words)[0]
    assert joined[1] < joined[0] < joined[2]
    assert np.isfinite(joined).all()


def test_an_edited_text_keeps_the_statistic_of_its_source_and_fits_by_its_own_words() -> None:
    rng = np.random.default_rng(0)
    given, wrong, fit = np.array([4.0, 1.0, 3.0]), rng.normal(size=50), np.array([3.0, 5.0, 4.0])
    place = np.array([2, 0, 0])
    words = WordScores(fit, np.zeros(3), rng.normal(size=50), place, np.array([4.0, 3.0, 1.0]), np.zeros(3))
    of_given, _, of_edited = join_likelihood(given, wrong, words)
    # The first two fit as well as what they were made of, and so stand where that stands; the third fits worse.
    np.testing.assert_allclose(of_edited[:2], of_given[place[:2]], rtol=1e-12)
    assert of_edited[2] < of_given[0]


def test_both_distributions_are_fitted_without_what_passes_for_shuffled() -> None:
    """Wrong words so bad that a pair passes for shuffled: were they left among the made ones alone, hardly any given
    pair would look as bad as those, and the share of edited texts be read far too low."""
    words, is_edited = made_words(distance=3.0, rate=0.25)
    passes = (words.worst > 0).astype(float)  # half of the edited ones, and nearly all right ones
    made_pass = (words.edited_worst > 0).astype(float)
    right_rate = is_edited[passes > 0.5].mean()
    _, rate, _ = scored(words, not_shuffled=passes, edited_not_shuffled=made_pass)
    assert rate.estimate == pytest.approx(right_rate, abs=0.03)
    _, of_all_made, _ = scored(words, not_shuffled=passes, edited_not_shuffled=np.ones(COUNT))
    assert of_all_made.estimate < right_rate - 0.05
