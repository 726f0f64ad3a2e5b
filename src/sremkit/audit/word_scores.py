"""From what word witnesses say to scores: wrong pairs are of two kinds, and both heaps are known.

    P(right) = P(not shuffled | how all of it fits) · P(not edited | its worst word, not shuffled)

The first factor comes from shuffled texts as without words, only that the fit of the words joins the statistic.
The second comes from the same mixture once more: of the given pairs that are likely not shuffled, and of texts with
one word exchanged by one that makes sense there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sremkit.audit.noise_rate import noise_rate_interval
from sremkit.audit.score_mixture import fit_mixture, separation
from sremkit.audit.scores import FEWEST_PAIRS, LEAST_SEPARATION, TIE_BREAK, scale_of
from sremkit.audit.verdicts import NoiseRate
from sremkit.audit.word_judging import JudgedWords

WORDS_UNCLEAR = "single wrong words look too much like right ones to these models, so they were not judged"


@dataclass(frozen=True, eq=False)
class JoinedFit:
    """Statistics in standard deviations of the surely wrong pairs and from their mean."""

    given: np.ndarray  # (f,)
    wrong: np.ndarray  # (w,)
    edited: np.ndarray  # (e,)


def join_fit(given: np.ndarray, wrong: np.ndarray, words: JudgedWords) -> JoinedFit:
    """The statistic of a fold's pairs, joined with how their words fit.

    Each counts as much as it sets the given pairs apart from the surely wrong ones. One word hardly moves the vector of
    a text, so an edited text keeps the statistic of the text that it was made of, and only its words fit worse.

    Args:
        given: (f,) and wrong (w,), in standard deviations of the latter and from their mean.
    """
    middle, width = scale_of(words.wrong_fit[np.isfinite(words.wrong_fit)])
    fits = [(fit - middle) / width for fit in (words.fit, words.wrong_fit, words.edited_fit)]
    say = max(float(given.mean()), 0.0)
    fit_say = max(float(np.nanmean(fits[0])), 0.0) if np.isfinite(fits[0]).any() else 0.0
    # A text in which no word can be exchanged speaks neither for its picture nor against it.
    joined = [
        say * statistic + fit_say * np.nan_to_num(fit, nan=fit_say / 2)
        for statistic, fit in zip((given, wrong, given[words.edited_place]), fits, strict=True)
    ]
    middle, width = scale_of(joined[1])
    return JoinedFit(*((statistic - middle) / width for statistic in joined))


def add_words(
    words: Sequence[JudgedWords],
    not_shuffled: np.ndarray,
    edited_not_shuffled: np.ndarray,
    order: np.ndarray,
    rate: NoiseRate,
    group: np.ndarray,
    *,
    seed: int,
) -> tuple[np.ndarray, NoiseRate, str]:
    """Scores and noise rate of pairs whose words were judged too, and a sentence where words say too little.

    Args:
        words: of every fold; the other arrays are over all given pairs, fold by fold.
        not_shuffled: (m,) the probability from the first mixture; `edited_not_shuffled` (e,) of the edited texts.
        order: (m,) in [0, 1]: the share of pairs that fare worse.
        rate: of shuffled pairs.
        group: (m,) of the pair's image.
    """
    given, edited, source = _on_one_scale(words)
    as_before = (1 - TIE_BREAK) * not_shuffled + TIE_BREAK * order
    # Both heaps without what passes for shuffled: the worst of the edited ones do too, in the data and among the made.
    likely, likely_edited = not_shuffled > 0.5, edited_not_shuffled > 0.5
    if likely_edited.sum() < FEWEST_PAIRS:
        return as_before, rate, WORDS_UNCLEAR
    whole, given, edited = given, given[likely], edited[likely_edited]
    group_of_edited = group[source][likely_edited]
    mixture = fit_mixture(given, edited)
    # As in `fit_scores`: an edited text wins half of its comparisons, the right ones must account for the rest.
    won = separation(given, edited)
    if (won - mixture.rate / 2) / max(1 - mixture.rate, 1e-9) < LEAST_SEPARATION:
        return as_before, rate, WORDS_UNCLEAR
    edits = noise_rate_interval(mixture.share, given, edited, group[likely], group_of_edited, seed=seed)
    right = not_shuffled * mixture.right_probability(whole)
    worse = np.argsort(np.argsort(whole, kind="stable"), kind="stable") / max(len(whole) - 1, 1)
    score = (1 - TIE_BREAK) * right + TIE_BREAK * (order + worse) / 2
    return score, _either(rate, edits), ""


def _on_one_scale(words: Sequence[JudgedWords]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The worst words of given and of edited pairs, and of which given pair each edited one was made."""
    given, edited, source, before = [], [], [], 0
    for fold in words:
        middle, width = scale_of(fold.edited_worst)
        given.append((fold.worst - middle) / width)
        edited.append((fold.edited_worst - middle) / width)
        source.append(before + fold.edited_place)
        before += len(fold.worst)
    return np.concatenate(given), np.concatenate(edited), np.concatenate(source)


def _either(shuffled: NoiseRate, edited: NoiseRate) -> NoiseRate:
    """The share of pairs that are wrong in one way or the other; `edited` is among those not shuffled."""
    return NoiseRate(
        *(1 - (1 - getattr(shuffled, n)) * (1 - getattr(edited, n)) for n in ("estimate", "low", "high"))
    )
