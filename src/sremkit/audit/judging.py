"""Judging: every pair of a collection is looked at by models that have learnt from the other pairs alone.

The collection is split by picture into folds. For each fold some witnesses learn from all other folds, wrong pairs
included: a linear one and two small dual encoders trained with SREM-plus. They then compare each pair of the fold with
its competitors, and as many surely wrong pairs. What separates the two heaps gives the probability that a pair is
right and the share of wrong pairs. Nobody needs to know a single right pair beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sremkit.audit.choice import mismatches_at
from sremkit.audit.fold_judging import Groups, JudgedFold, judge_fold, learn_witnesses
from sremkit.audit.fold_store import FoldStore
from sremkit.audit.folds import group_lookalikes, split_folds
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.scores import BELIEVED, FEWEST_PAIRS, fit_scores, scale_of
from sremkit.audit.surely_wrong import number_texts
from sremkit.audit.vectors import Vectors, read_vectors
from sremkit.audit.verdicts import NOBODY, NoiseRate, Verdicts
from sremkit.audit.word_scores import add_words, join_fit
from sremkit.audit.word_witness import LocalView, look_at_words, train_word_witness
from sremkit.data.pairs import FeatureSource, Pairs

Progress = Callable[[str, int, int], None]

FEWEST_IMAGES = 20
NOT_JUDGED = -1  # in `fold`
MADE_WITH_WORDS = 2  # made pairs for each given one, at most, when words are judged
DEFAULTS = JudgingSettings()


def judge(
    pairs: Pairs,
    settings: JudgingSettings = DEFAULTS,
    *,
    regions: FeatureSource | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Verdicts:
    """Judge every pair. The same pairs, settings and number of threads give the same verdicts.

    Args:
        pairs: with one vector for each image and each text; any part of them may be wrong.
        regions: what single words are compared with, where settings.word_epochs asks for it: several vectors for
            each image, or one. By default the image features of the pairs.
        folder: keeps finished folds; called again with the same pairs and settings, it goes on from there.
        progress: called with what is being done, how much of it is done and how much there is.
    """
    vectors = read_vectors(pairs)
    readable = np.flatnonzero(vectors.readable)
    unread = _unread_note(len(pairs) - len(readable))
    reason = too_little(vectors, readable, settings)
    if reason:
        return no_verdicts(len(pairs), _joined(reason, unread))
    view, note = look_at_words(pairs, settings, regions)
    if view is not None:  # which hears fewer made pairs: every one costs a look at the picture
        settings = replace(settings, wrong_pairs=min(settings.wrong_pairs, MADE_WITH_WORDS * len(readable)))
    groups = Groups(group_lookalikes(vectors.images.numpy()), number_texts(vectors.texts))
    store = FoldStore(folder, vectors, settings, view)
    folds = _judge_folds(vectors, groups, readable, settings, store, view, progress)
    return _verdicts(folds, groups, vectors, settings, _joined(note, unread))


def _judge_folds(
    vectors: Vectors,
    groups: Groups,
    readable: np.ndarray,
    settings: JudgingSettings,
    store: FoldStore,
    view: LocalView | None,
    progress: Progress | None,
) -> list[JudgedFold]:
    image_of_text = vectors.image_of_text.numpy()[readable]
    fold_of = split_folds(image_of_text, groups.of_image, settings.folds, seed=settings.seed)
    judged = []
    for number in range(settings.folds):
        fold = store.load(number)
        if fold is None:
            seed = settings.seed * settings.folds + number
            others, own = readable[fold_of != number], readable[fold_of == number]
            told = steps_of_part(progress, number, settings)
            witnesses = learn_witnesses(vectors, others, settings, seed=seed, on_step=told)
            told = steps_of_part(progress, number, settings, what="learning words")
            of_words = (
                None if view is None else train_word_witness(view, others, settings, seed=seed, on_step=told)
            )
            fold = judge_fold(vectors, groups, witnesses, own, settings, seed=seed, word_witness=of_words)
            store.save(number, fold)
        judged.append(fold)
        if progress is not None:
            progress("judging", number + 1, settings.folds)
    return judged


def steps_of_part(
    progress: Progress | None, number: int, settings: JudgingSettings, *, what: str = "learning"
) -> Callable[[int, int], None] | None:
    """What tells of the steps while the witnesses of a fold learn, or None where nobody listens."""
    if progress is None:
        return None
    stage = f"{what} for part {number + 1} of {settings.folds}"
    return lambda done, total: progress(stage, done, total)


def _verdicts(
    folds: list[JudgedFold], groups: Groups, vectors: Vectors, settings: JudgingSettings, unread: str
) -> Verdicts:
    rows = np.concatenate([fold.rows for fold in folds])
    score, rate, note = _score(folds, groups, vectors, settings)
    is_mismatch = mismatches_at(score, precision=settings.precision) & (rate is not None)
    suspicious = (score < BELIEVED) & (rate is not None)
    better = {
        name: np.where(suspicious, np.concatenate([getattr(f, name) for f in folds]), NOBODY)
        for name in ("better_text", "better_image")
    }
    energies = {name: _joined_standing(folds, name) for name in ("energy_i2t", "energy_t2i")}
    ranks = {name: _joined_standing(folds, name) for name in ("rank_i2t", "rank_t2i")}
    fold_number = np.concatenate([np.full(len(f.rows), k) for k, f in enumerate(folds)])

    def spread(values: np.ndarray, otherwise: float) -> np.ndarray:
        """From the order of the folds to that of the pairs; pairs that could not be read get `otherwise`."""
        everywhere = np.full(len(vectors.readable), otherwise, dtype=values.dtype)
        everywhere[rows] = values
        return everywhere

    candidates = max(fold.candidates for fold in folds)
    return Verdicts(
        mismatch_score=spread(score, float(score.mean())),
        is_mismatch=spread(is_mismatch, False),
        **{name: spread(values, float(np.median(values))) for name, values in energies.items()},
        **{name: spread(values, candidates) for name, values in ranks.items()},
        **{name: spread(values, NOBODY) for name, values in better.items()},
        fold=spread(fold_number, NOT_JUDGED),
        candidates=candidates,
        noise_rate=rate,
        note=_joined(note, unread),
    )


def _score(
    folds: list[JudgedFold],
    groups: Groups,
    vectors: Vectors,
    settings: JudgingSettings,
) -> tuple[np.ndarray, NoiseRate | None, str]:
    """Each pair's probability of being right, the noise rate, and a sentence if there is none."""
    given, wrong, edited = _on_one_scale(folds)
    order = np.argsort(np.argsort(given, kind="stable"), kind="stable") / max(len(given) - 1, 1)  # in [0, 1]
    given_image = vectors.image_of_text.numpy()[np.concatenate([fold.rows for fold in folds])]
    wrong_image = np.concatenate([fold.wrong_image for fold in folds])
    fitted = fit_scores(
        given, wrong, groups.of_image[given_image], groups.of_image[wrong_image], seed=settings.seed
    )
    words = [fold.words for fold in folds if fold.words is not None]
    if not words or fitted.mixture is None or fitted.noise_rate is None:
        return fitted.score(given, order), fitted.noise_rate, fitted.note
    not_shuffled, edited_not_shuffled = (fitted.mixture.right_probability(s) for s in (given, edited))
    group = groups.of_image[given_image]
    return add_words(
        words, not_shuffled, edited_not_shuffled, order, fitted.noise_rate, group, seed=settings.seed
    )


def _on_one_scale(folds: list[JudgedFold]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The statistics of given, wrong and edited pairs, in standard deviations of each fold's own wrong pairs."""
    given, wrong, edited = [], [], [np.zeros(0)]
    for fold in folds:
        middle, width = scale_of(fold.wrong_statistic)
        of_given, of_wrong = ((s - middle) / width for s in (fold.standing.statistic, fold.wrong_statistic))
        if fold.words is not None:
            joined = join_fit(of_given, of_wrong, fold.words)
            of_given, of_wrong = joined.given, joined.wrong
            edited.append(joined.edited)
        given.append(of_given)
        wrong.append(of_wrong)
    return np.concatenate(given), np.concatenate(wrong), np.concatenate(edited)


def _joined_standing(folds: list[JudgedFold], name: str) -> np.ndarray:
    return np.concatenate([getattr(fold.standing, name) for fold in folds])


def too_little(vectors: Vectors, readable: np.ndarray, settings: JudgingSettings) -> str:
    """Why nothing can be said at all, or an empty string."""
    fewest_images = max(FEWEST_IMAGES, 2 * settings.folds)
    num_images = len(np.unique(vectors.image_of_text.numpy()[readable]))
    if len(readable) < FEWEST_PAIRS:
        return (
            f"{len(readable)} pairs are too few to learn from, so none is judged; "
            f"from {FEWEST_PAIRS} on it is tried, and some thousands judge well"
        )
    if num_images < fewest_images:
        return (
            f"the pairs share {num_images} picture{'s' if num_images > 1 else ''}, and judging compares "
            f"pictures; it needs {fewest_images} or more, so no pair is judged"
        )
    return ""


def _unread_note(count: int) -> str:
    if count == 0:
        return ""
    pairs = "1 pair was" if count == 1 else f"{count:,} pairs were"
    return f"{pairs} not judged, because the vector of the image or the text holds NaN or cannot be read"


def _joined(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)


def no_verdicts(count: int, note: str) -> Verdicts:
    """Nothing is known of any pair: each is as likely right as wrong, and none is called a mismatch."""
    nobody = np.full(count, NOBODY, dtype=np.int64)
    zeros, ones = np.zeros(count, dtype=np.float32), np.ones(count, dtype=np.int64)
    return Verdicts(
        mismatch_score=np.full(count, 0.5),
        is_mismatch=np.zeros(count, dtype=bool),
        energy_i2t=zeros,
        energy_t2i=zeros.copy(),
        rank_i2t=ones,
        rank_t2i=ones.copy(),
        better_text=nobody,
        better_image=nobody.copy(),
        fold=np.full(count, NOT_JUDGED, dtype=np.int64),
        candidates=1,
        noise_rate=None,
        note=note,
    )


__all__ = ["JudgingSettings", "judge"]
