"""Repeated K-fold cross-fitting: the estimator behind every audit.

The pairs are split by image into folds. For each fold an ensemble (ridge CCA, on request with dual encoders trained
with SREM-plus) is fitted to the other folds, mismatched pairs included, and scores the held-out pairs and negatives by
a candidate softmax. Small collections are split several times, and a pair's statistics averaged. Folds are scored in
parallel processes of one thread. A binormal mixture of given pairs and random negatives gives P(match) and the noise
rate, near negatives what near mismatches could add. No pair has to be labelled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from sremkit.audit.scoring.calibration import (
    MIN_PAIRS,
    Calibration,
    calibrate,
    independent_pairs,
    is_suspicious,
    null_scale,
)
from sremkit.audit.scoring.dual_encoder import OnStep
from sremkit.audit.scoring.fold_model import SEED_STRIDE, EncodedPairs, FoldModel, FoldScores, score_fold, train_scorers
from sremkit.audit.scoring.fold_store import FoldStore, fold_key, read_models, write_models
from sremkit.audit.scoring.folds import Folds, hashed_folds, of_readable, repeated_folds, single_division
from sremkit.audit.scoring.joint_posterior import fit_joint_posterior
from sremkit.audit.scoring.near_bound import bound_near_mismatches
from sremkit.audit.scoring.types import NearMismatches, NoiseRate, PairScores, PairVectors, ScoringSettings
from sremkit.data.pairs import MISSING
from sremkit.worker_processes import run_parallel, usable_cores

Progress = Callable[[str, int, int], None]

MIN_IMAGES = 20
MIN_PAIRS_PER_FOLD = 10
MIN_PAIRS_FOR_WORKERS = 2_000  # over all divisions
OF_FIRST_DIVISION = ("energy_i2t", "energy_t2i", "rank_i2t", "rank_t2i")  # statistics are of all divisions


class CrossFitScorer:
    """Scores image-text pairs by models that were not trained on their images.

        scores = CrossFitScorer(settings).fit_score(vectors)                   # a collection that fits into memory
        scorer = CrossFitScorer(settings).fit(sample, num_images=n)            # a larger one: fit on a sample,
        scores = scorer.score(shard)                                           # score any part of it

    Equal vectors and settings give equal scores.

    Args:
        folder: keeps finished folds of `fit_score`; a second call with the same vectors and settings resumes there.
        workers: processes that score folds, one thread each; by default one for each core. They change no score.
        progress: called with a stage, the steps done and all steps of it.

    Attributes:
        models: after `fit`, one for each fold of each division, those of the first division first; none where the
            pairs were too few.
        calibration: the map from statistics to P(match), with the noise rate.
    """

    def __init__(
        self,
        settings: ScoringSettings | None = None,
        *,
        folder: Path | None = None,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings or ScoringSettings()
        self.folder = folder
        self.workers = usable_cores() if workers is None else workers
        self.progress = progress
        self.models: list[FoldModel] = []
        self.calibration = Calibration(None, None, "", np.zeros(0))
        # Of images that were fitted on, where their folds are not hashed: the fold in each division.
        self.folds_of_key: dict[int, list[int]] = {}

    def fit_score(self, vectors: PairVectors) -> PairScores:
        """Fit on all pairs, any of which may mismatch, and return the held-out score of each."""
        settings = self.settings
        readable = np.flatnonzero(vectors.readable)
        unread = _unread_note(len(vectors.readable) - len(readable))
        if reason := _too_little(vectors, settings):
            return PairScores.unscored(len(vectors.readable), _joined(reason, unread))
        images = vectors.image_of_text.numpy()[readable]
        repeats = settings.repeats_for(len(readable))
        divided = repeated_folds(images, vectors.group_of_image, settings.folds, repeats=repeats, seed=settings.seed)
        folds = of_readable(divided, readable, len(vectors.readable))
        store = None
        if self.folder is not None:
            store = FoldStore(self.folder, settings, fold_key(vectors, settings, folds))
        scores = self._cross_fit(vectors, folds, settings, store, keep_model=store is not None)
        self.folds_of_key = dict(zip(vectors.image_key[images].tolist(), divided.fold.T.tolist(), strict=True))
        return replace(scores, note=_joined(scores.note, unread))

    def fit(self, vectors: PairVectors, *, num_images: int) -> Self:
        """Fit on a sample of a collection with `num_images` images, such that other pairs of it can be scored."""
        settings, image_of_text = self.settings, vectors.image_of_text.numpy()
        fold_of_pair = hashed_folds(vectors.image_key, settings.folds, seed=settings.seed)[image_of_text]
        smallest = np.bincount(fold_of_pair, minlength=settings.folds).min()
        reason = _too_little(vectors, settings)
        if not reason and smallest < MIN_PAIRS_PER_FOLD:
            reason = f"a fold of the sample holds {smallest} pairs, too few to compare, so no pair is scored"
        if reason:
            self.calibration = Calibration(None, None, reason, np.zeros(0))
            return self
        self._cross_fit(vectors, single_division(fold_of_pair, settings.folds), settings, num_images=num_images)
        return self

    def score(self, vectors: PairVectors) -> PairScores:
        """Score pairs, fitted on or not, each by the model of its image's fold.

        In the result `better_text` and `better_image` are rows and image numbers of the pairs fitted on.
        """
        note, rate = self.calibration.note, self.calibration.noise_rate
        scores = PairScores.unscored(len(vectors.texts), note, candidates=self.candidates, rate=rate)
        if not self.models:
            return scores
        image_of_text, folds = vectors.image_of_text.numpy(), self._folds_of_images(vectors.image_key)
        statistic = np.zeros(len(vectors.texts))
        for number, model in enumerate(self.models):
            repeat, fold = divmod(number, self.settings.folds)
            rows = np.flatnonzero(vectors.readable & (folds[repeat, image_of_text] == fold))
            if len(rows) == 0:
                continue
            found = model.score(_encode(model, vectors, rows))
            statistic[rows] += found.statistic / len(folds)
            if repeat == 0:
                scores.fold[rows] = fold
                for name in OF_FIRST_DIVISION:
                    getattr(scores, name)[rows] = getattr(found, name)
        readable = np.flatnonzero(vectors.readable)
        scores.match_prob[readable] = self.calibration.score_pairs(statistic[readable], *_captions(readable, vectors))
        suspicious = is_suspicious(scores.match_prob, rate)
        for fold, model in enumerate(self.models[: self.settings.folds]):
            rows = np.flatnonzero(suspicious & (scores.fold == fold))
            if len(rows):
                scores.better_text[rows], scores.better_image[rows] = model.find_better(_encode(model, vectors, rows))
        return scores

    def _folds_of_images(self, image_key: np.ndarray) -> np.ndarray:
        """The fold of each image in each division, (r, n): images fitted on keep theirs, others have one by a hash."""
        hashed = hashed_folds(image_key, self.settings.folds, seed=self.settings.seed)
        repeats = len(self.models) // self.settings.folds
        if not self.folds_of_key:
            return np.tile(hashed, (repeats, 1))
        pairs = zip(image_key.tolist(), hashed.tolist(), strict=True)
        return np.array([self.folds_of_key.get(key, [fold] * repeats) for key, fold in pairs], dtype=np.int64).T

    @property
    def candidates(self) -> int:
        """Candidates that pairs are compared with, at most; after `fit`."""
        return max((model.candidates for model in self.models), default=1)

    def save(self, folder: Path, facts: dict[str, Any], *, with_models: bool = True) -> None:
        """Write what `fit` or `fit_score` has learnt, with further facts for JSON.

        Args:
            with_models: leave out the models of the folds where the folder of `fit_score` has them.
        """
        keys, folds = list(self.folds_of_key), list(self.folds_of_key.values())
        known = {"known_keys": keys, "known_folds": folds, "num_models": len(self.models)} if keys else {}
        write_models(folder, self.models if with_models else [], self.calibration, self.settings, {**facts, **known})

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """A scorer that was saved, and the facts; models are read from the folder above if they are there.

        All of them or none: without the model of a fold its images would be scored by one that was trained on them.
        """
        models, calibration, settings, facts = read_models(folder)
        scorer = cls(settings)
        num_models = facts.pop("num_models", settings.folds)
        folders = [folder.parent / f"model-{number}" for number in range(num_models)]
        if not models and any(of_fold.is_dir() for of_fold in folders):
            models = [read_models(of_fold)[0][0] for of_fold in folders]
        scorer.models, scorer.calibration = models, calibration
        known = zip(facts.pop("known_keys", ()), facts.pop("known_folds", ()), strict=True)
        # One number in the folders of earlier versions, which divided once.
        scorer.folds_of_key = {key: [folds] if isinstance(folds, int) else folds for key, folds in known}
        return scorer, facts

    def _cross_fit(
        self,
        vectors: PairVectors,
        folds: Folds,
        settings: ScoringSettings,
        store: FoldStore | None = None,
        **options: Any,
    ) -> PairScores:
        """Train and score every fold of every division and calibrate; options as for `score_fold`."""
        group_of_pair = vectors.group_of_image[vectors.image_of_text.numpy()]
        finished: dict[int, tuple[FoldScores, FoldModel | None]] = {}
        num_models = folds.repeats * settings.folds

        def compute(number: int) -> tuple[FoldScores, FoldModel | None]:
            repeat, fold = divmod(number, settings.folds)
            seed = (settings.seed + repeat * SEED_STRIDE) * settings.folds + fold
            held_out = folds.fold[repeat] == fold
            # Near-duplicates of a held-out image are not trained on, in whichever fold they are.
            train = np.flatnonzero(vectors.is_usable & ~np.isin(group_of_pair, np.unique(group_of_pair[held_out])))
            scorers = train_scorers(vectors, train, settings, seed=seed, on_step=self._steps(number, num_models))
            rows = np.flatnonzero(held_out)
            return score_fold(vectors, scorers, rows, settings, seed=seed, folds=folds, repeat=repeat, **options)

        for number in range(num_models):
            fold = None if store is None else store.load(number)
            model = None if store is None or fold is None else store.load_model(number)
            if fold is not None and (store is None or model is not None):
                finished[number] = fold, model
        _ = vectors.group_of_text, vectors.image_key, vectors.num_used  # computed once, before processes are forked
        todo = [number for number in range(num_models) if number not in finished]
        # Steps of a training are reported by this process; closed forms of few pairs take less time than a fork.
        alone = settings.dual_encoders > 0 or folds.repeats * len(vectors.readable) < MIN_PAIRS_FOR_WORKERS
        workers = 1 if alone else self.workers
        with nullcontext(store) if store is not None or workers < 2 else temporary_store(settings) as kept:

            def compute_and_keep(number: int) -> None:
                if kept is None:
                    finished[number] = compute(number)
                else:
                    kept.save(number, *compute(number))

            for number, _ in run_parallel(compute_and_keep, todo, workers):
                if kept is not None:
                    fold = kept.load(number)
                    assert fold is not None
                    finished[number] = fold, kept.load_model(number)
                if self.progress is not None:
                    self.progress("scored folds", len(finished), num_models)
        self.models = [model for _, (_, model) in sorted(finished.items()) if model is not None]
        return self._calibrate([fold for _, (fold, _) in sorted(finished.items())], folds, vectors)

    def _steps(self, number: int, num_models: int) -> OnStep | None:
        return self.progress and partial(self.progress, f"training, fold {number + 1} of {num_models}")

    def _calibrate(self, scored: Sequence[FoldScores], divided: Folds, vectors: PairVectors) -> PairScores:
        """Fit the calibration to the held-out pairs of all folds, with the means over divisions, and score them."""
        divisions = [scored[k * self.settings.folds :][: self.settings.folds] for k in range(divided.repeats)]
        folds = divisions[0]
        rows, seed = np.concatenate([fold.rows for fold in folds]), self.settings.seed
        of_divisions = [_on_one_scale(division, rows) for division in divisions]
        given, null = (np.mean(statistics, axis=0) for statistics in zip(*of_divisions, strict=True))
        group = vectors.group_of_image[vectors.image_of_text.numpy()[rows]]
        fitted = calibrate(given, null, group)
        if fitted.noise_rate is not None:
            fitted = _with_joint(fitted, given, rows, vectors, seed=seed)
        match_prob = fitted.score_pairs(given, *_captions(rows, vectors))
        if fitted.joint is not None:
            fitted = replace(fitted, noise_rate=joint_rate(fitted.noise_rate, match_prob))
        rate, note = fitted.noise_rate, fitted.note
        if rate is not None:
            near = _bound_near(folds, fitted, rate, *of_divisions[0], match_prob, effective=independent_pairs(group))
            fitted = replace(fitted, near=near)
        self.calibration = fitted
        # From the order of the folds to that of the pairs; pairs that cannot be read stay unscored.
        candidates = max(fold.candidates for fold in folds)
        scores = PairScores.unscored(len(vectors.readable), note, candidates=candidates, rate=rate)
        scores = replace(scores, separation=fitted.separation, near=fitted.near)
        scores.match_prob[rows] = match_prob
        for number, fold in enumerate(folds):
            scores.fold[fold.rows] = number
            for name in (*OF_FIRST_DIVISION, "better_text", "better_image"):
                getattr(scores, name)[fold.rows] = getattr(fold, name)
        for better in (scores.better_text, scores.better_image):
            better[~is_suspicious(scores.match_prob, rate)] = MISSING
        return scores


@contextmanager
def temporary_store(settings: ScoringSettings) -> Iterator[FoldStore]:
    """A store for the time in which worker processes hand over their folds."""
    with tempfile.TemporaryDirectory() as folder:
        yield FoldStore(Path(folder), settings, "")


def _encode(model: FoldModel, vectors: PairVectors, rows: np.ndarray) -> EncodedPairs:
    """These pairs by the model of a fold."""
    used, image_of_row = np.unique(vectors.image_of_text.numpy()[rows], return_inverse=True)
    images, texts = vectors.images[torch.from_numpy(used)], vectors.texts[torch.from_numpy(rows)]
    return model.encode(images, texts, torch.from_numpy(image_of_row.reshape(-1)), vectors.image_key[used])


def _on_one_scale(folds: Sequence[FoldScores], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The statistics of the given pairs `rows` and of null pairs, in standard deviations of each fold's null
    distribution. Null pairs are in the order of their blocks, which is that of every division."""
    given, null = [], []
    for fold in folds:
        mean, std = null_scale(fold.null_statistic)
        given.append((fold.statistic - mean) / std)
        null.append((fold.null_statistic - mean) / std)
    of_row = np.zeros(int(rows.max()) + 1)
    of_row[np.concatenate([fold.rows for fold in folds])] = np.concatenate(given)
    order = np.argsort(np.concatenate([fold.null_block for fold in folds]), kind="stable")
    return of_row[rows], np.concatenate(null)[order]


def _captions(rows: np.ndarray, vectors: PairVectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Text vectors, images and groups of equal texts of these pairs."""
    return vectors.texts.numpy()[rows], vectors.image_of_text.numpy()[rows], vectors.group_of_text[rows]


def _with_joint(
    fitted: Calibration, given: np.ndarray, rows: np.ndarray, vectors: PairVectors, *, seed: int
) -> Calibration:
    """The calibration with the joint posterior of the captions of an image, where images have several."""
    assert fitted.ratio is not None
    own, share = fitted.ratio.match_prob(given), fitted.ratio.share.estimate
    return replace(fitted, joint=fit_joint_posterior(own, share, *_captions(rows, vectors), seed=seed))


def joint_rate(rate: NoiseRate | None, match_prob: np.ndarray) -> NoiseRate | None:
    """The noise rate with what the captions of an image show together.

    The mean of the joint posterior is a little low, because resemblance is bounded below. So it counts where it is
    higher: where whole images are wrong, or captions are nearer than random ones.
    """
    if rate is None:
        return None
    estimate = max(rate.estimate, float(1 - match_prob.mean()))
    return NoiseRate(estimate, rate.low, min(estimate + (rate.high - rate.estimate), 1.0))


def _bound_near(
    folds: Sequence[FoldScores],
    fitted: Calibration,
    rate: NoiseRate,
    given: np.ndarray,
    null: np.ndarray,
    match_prob: np.ndarray,
    *,
    effective: float,
) -> NearMismatches:
    """What near mismatches could add to the rate; the arrays are over all folds, in their order."""
    near, source, before = [], [], 0
    for fold in folds:
        mean, std = null_scale(fold.null_statistic)
        near.append((fold.near_statistic - mean) / std)
        source.append(before + fold.near_place)
        before += len(fold.rows)
    kind = np.concatenate([fold.near_kind for fold in folds])
    of_source = match_prob[np.concatenate(source)]
    return bound_near_mismatches(rate, given, null, np.concatenate(near), kind, of_source, effective=effective)


def _too_little(vectors: PairVectors, settings: ScoringSettings) -> str:
    """Why no pair can be scored at all, or an empty string."""
    images = vectors.image_of_text.numpy()[vectors.readable]
    num_images, min_images = len(np.unique(images)), max(MIN_IMAGES, 2 * settings.folds)
    if len(images) < MIN_PAIRS:
        return (
            f"{len(images)} pairs are too few to train on, so none is scored; it is tried from {MIN_PAIRS} on, "
            "and some thousands give good scores"
        )
    if num_images < min_images:
        return (
            f"the pairs share {num_images} image{'s' if num_images > 1 else ''}, and scoring compares "
            f"images; it needs {min_images} or more, so no pair is scored"
        )
    return ""


def _unread_note(count: int) -> str:
    if count == 0:
        return ""
    pairs = "1 pair was" if count == 1 else f"{count:,} pairs were"
    return f"{pairs} not scored, because the vector of the image or the text holds NaN or cannot be read"


def _joined(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)
