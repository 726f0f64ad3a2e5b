"""Scores from words: mismatches are of two kinds, shuffled captions and captions with one wrong word.

    P(match) = P(not shuffled | ensemble and words) · P(no word replaced | worst word, not shuffled)

The first factor is calibrated with random negatives as without words, where the log-likelihood of the words joins the
statistic. The second is a binormal mixture once more: of the given pairs that are likely not shuffled, and of hard
negatives with one replaced word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sremkit.audit.scoring.calibration import (
    MIN_PAIRS,
    TIE_BREAK,
    auroc,
    fit_density_ratio,
    noise_rate_interval,
    null_scale,
)
from sremkit.audit.scoring.negatives import RandomNegatives
from sremkit.audit.scoring.types import NoiseRate
from sremkit.audit.scoring.word_scorer import WordScorer, replace_words

WORDS_UNCLEAR = "single wrong words look too much like right ones to these models, so they were not scored"


@dataclass(frozen=True, eq=False)
class WordScores:
    """Scores by a word scorer that was not trained on these f pairs, see `WordScorer.score`; and of negatives."""

    likelihood: np.ndarray  # (f,) in the order of the fold's rows
    worst: np.ndarray  # (f,)
    null_likelihood: np.ndarray  # (w,) of the random negatives
    edited_place: np.ndarray  # (e,) which of the fold's pairs had a word replaced
    edited_likelihood: np.ndarray  # (e,) and its scores then
    edited_worst: np.ndarray  # (e,)


def score_words(scorer: WordScorer, rows: np.ndarray, negatives: RandomNegatives, *, seed: int) -> WordScores:
    """Score the pairs `rows`, random negatives, and hard negatives with one replaced word."""
    slots, image_of_text = scorer.inputs.words, scorer.inputs.image_of_text
    likelihood, worst = scorer.score(image_of_text[rows], slots.tokens[torch.from_numpy(rows)])
    null_likelihood, _ = scorer.score(negatives.image, slots.tokens[torch.from_numpy(negatives.text)])
    edited_rows, edited_tokens = replace_words(scorer, rows, seed=seed)
    edited_likelihood, edited_worst = scorer.score(image_of_text[edited_rows], edited_tokens)
    place_of_row = np.zeros(len(image_of_text), dtype=np.int64)
    place_of_row[rows] = np.arange(len(rows))
    return WordScores(likelihood, worst, null_likelihood, place_of_row[edited_rows], edited_likelihood, edited_worst)


def join_likelihood(
    given: np.ndarray, null: np.ndarray, words: WordScores
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join the statistic of a fold with the log-likelihood of the words, each weighted by its separation.

    One word hardly moves the vector of a text, so an edited text keeps the statistic of the text that it was made of.
    Returns the joined statistic of given (f,), null (w,) and edited (e,) pairs, on the scale of the joined null.
    """
    mean, std = null_scale(words.null_likelihood[np.isfinite(words.null_likelihood)])
    likelihoods = [
        (values - mean) / std for values in (words.likelihood, words.null_likelihood, words.edited_likelihood)
    ]
    weight = max(float(given.mean()), 0.0)
    word_weight = max(float(np.nanmean(likelihoods[0])), 0.0) if np.isfinite(likelihoods[0]).any() else 0.0
    # A text without slots gets the log-likelihood half-way between null and given: no evidence for either.
    joined = [
        weight * statistic + word_weight * np.nan_to_num(likelihood, nan=word_weight / 2)
        for statistic, likelihood in zip((given, null, given[words.edited_place]), likelihoods, strict=True)
    ]
    mean, std = null_scale(joined[1])
    on_scale = [(statistic - mean) / std for statistic in joined]
    return on_scale[0], on_scale[1], on_scale[2]


def add_words(
    words: Sequence[WordScores],
    not_shuffled: np.ndarray,
    edited_not_shuffled: np.ndarray,
    rank: np.ndarray,
    rate: NoiseRate,
    group: np.ndarray,
) -> tuple[np.ndarray, NoiseRate, str]:
    """Scores and noise rate with the second factor, and a sentence where words separate too little.

    Args:
        words: of every fold; the other arrays are over all given pairs, fold by fold.
        not_shuffled: (m,) the first factor; `edited_not_shuffled` (e,) of the edited texts.
        rank: (m,) in [0, 1]: the fraction of pairs with a lower statistic.
        rate: of shuffled pairs.
        group: (m,) of the pair's image.
    """
    worst, edited = _on_one_scale(words)
    without_words = (1 - TIE_BREAK) * not_shuffled + TIE_BREAK * rank
    # Both distributions without what passes for shuffled: the worst edited texts do, in the data and among the made.
    likely, likely_edited = not_shuffled > 0.5, edited_not_shuffled > 0.5
    if likely_edited.sum() < MIN_PAIRS:
        return without_words, rate, WORDS_UNCLEAR
    given, null = worst[likely], edited[likely_edited]
    ratio = fit_density_ratio(given, null)
    if not ratio.separates(auroc(given, null)):
        return without_words, rate, WORDS_UNCLEAR
    edit_rate = noise_rate_interval(ratio.share.estimate, given, null, effective=len(np.unique(group[likely])))
    match_prob = not_shuffled * ratio.match_prob(worst)
    worst_rank = np.argsort(np.argsort(worst, kind="stable"), kind="stable") / max(len(worst) - 1, 1)
    score = (1 - TIE_BREAK) * match_prob + TIE_BREAK * (rank + worst_rank) / 2
    # Mismatched in one way or the other: the edited texts are among those not shuffled.
    ends = ("estimate", "low", "high")
    either = NoiseRate(*(1 - (1 - getattr(rate, end)) * (1 - getattr(edit_rate, end)) for end in ends))
    return score, either, ""


def _on_one_scale(words: Sequence[WordScores]) -> tuple[np.ndarray, np.ndarray]:
    """The worst words of given and of edited pairs."""
    given, edited = [], []
    for fold in words:
        mean, std = null_scale(fold.edited_worst)
        given.append((fold.worst - mean) / std)
        edited.append((fold.edited_worst - mean) / std)
    return np.concatenate(given), np.concatenate(edited)
