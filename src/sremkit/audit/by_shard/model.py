"""What is learnt from the sample, and how it judges pairs that were not in it.

For each fold the witnesses learn from the sample's pairs of the other folds, exactly as in an audit of one piece. The
statistics of the sample's own pairs, each from the witnesses that have not seen its picture, give the noise rate and
the way from a statistic to a score. Any other pair is then judged by the witnesses of its picture's fold, against the
candidates of that fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.better_fits import find_better
from sremkit.audit.by_shard.sample import Sample, fold_of
from sremkit.audit.competition import Competition, Say, Standing, Witness, join_encoded
from sremkit.audit.fold_judging import Groups, Hearing, hear_witnesses, learn_witnesses
from sremkit.audit.folds import group_lookalikes
from sremkit.audit.judging import Progress, steps_of_part, too_little
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.scores import BELIEVED, FittedScores, fit_scores, scale_of
from sremkit.audit.surely_wrong import number_texts
from sremkit.audit.verdicts import NOBODY

LARGEST_POOL = 5_000  # pairs of a fold among which better texts and images are sought
FEWEST_IN_A_FOLD = 10


@dataclass(frozen=True, eq=False)
class Pool:
    """Pairs of the sample that others are compared with; the first of them are the candidates."""

    image_emb: Tensor  # (p, d) as the witnesses see them
    text_emb: Tensor  # (p, d)
    image_key: np.ndarray  # (p,)
    candidates: int
    pair_ids: list[str]
    captions: list[str]
    image_ids: list[str]


@dataclass(frozen=True, eq=False)
class FoldJudge:
    """Judges the pairs of one fold."""

    witnesses: Sequence[Witness]
    says: Sequence[Say]
    middle: float  # of the statistics of surely wrong pairs
    width: float
    pool: Pool

    @torch.no_grad()
    def hear(self, images: Tensor, texts: Tensor, image_of_text: Tensor, image_key: np.ndarray) -> Heard:
        """Compare pairs with the candidates.

        Args:
            images: (n, d); texts: (m, e) with image `image_of_text[k]` each; image_key: (n,).
        """
        encoded = [(w.encode_images(images), w.encode_texts(texts)) for w in self.witnesses]
        image_emb, text_emb = join_encoded(encoded, self.says)
        pool, num_pairs = self.pool, len(texts)
        # A picture of the pool that is one of these gets their number, so that it does not compete with itself.
        pool_image = torch.from_numpy(_numbers_of(pool.image_key, image_key))
        all_images, all_texts = torch.cat([image_emb, pool.image_emb]), torch.cat([text_emb, pool.text_emb])
        image_of_any = torch.cat([image_of_text, pool_image])
        candidates = torch.arange(num_pairs, num_pairs + pool.candidates)
        competition = Competition(all_images, all_texts, image_of_any, candidates)
        standing = competition.standing(image_of_text.numpy(), np.arange(num_pairs))
        return Heard(all_images, all_texts, image_of_any, num_pairs, standing)


@dataclass(frozen=True, eq=False)
class Heard:
    """Some pairs, then those of the pool, as the witnesses see them, and how the former stand."""

    image_emb: Tensor
    text_emb: Tensor
    image_of_text: Tensor
    num_pairs: int
    standing: Standing

    @torch.no_grad()
    def better(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For some of the pairs the row of a better text and the number of a better image, or NOBODY."""
        if len(rows) == 0:
            return np.full(0, NOBODY), np.full(0, NOBODY)
        pool_rows = np.arange(self.num_pairs, len(self.text_emb))
        every_image = np.arange(len(self.image_emb))  # no copies are known here: each stands for itself
        return find_better(
            self.image_emb,
            self.text_emb,
            self.image_of_text,
            every_image,
            rows,
            seed=0,
            pool_rows=pool_rows,
        )


@dataclass(frozen=True, eq=False)
class Model:
    """Judges for every fold, and the scores that their statistics stand for; no judges where data are too few."""

    judges: Sequence[FoldJudge]
    scores: FittedScores
    rising: np.ndarray  # (m,) statistics of the sample's pairs, sorted
    seed: int
    sampled: int

    @property
    def candidates(self) -> int:
        return max((judge.pool.candidates for judge in self.judges), default=1)

    def fold_of(self, image_key: np.ndarray) -> np.ndarray:
        return fold_of(image_key, len(self.judges), seed=self.seed)

    def score(self, statistic: np.ndarray, fold: int) -> np.ndarray:
        """How likely pairs of a fold are right."""
        judge = self.judges[fold]
        scaled = (statistic - judge.middle) / judge.width
        worse = np.searchsorted(self.rising, scaled) / max(len(self.rising) - 1, 1)
        return self.scores.score(scaled, np.minimum(worse, 1.0))

    def suspicious(self, score: np.ndarray) -> np.ndarray:
        return (score < BELIEVED) & (self.scores.noise_rate is not None)


def learn(
    sample: Sample, settings: JudgingSettings, *, num_images: int, progress: Progress | None = None
) -> Model:
    """Learn from a sample.

    Args:
        num_images: in the whole collection.
    """
    vectors, rows = sample.vectors, np.arange(len(sample.pair_ids))
    image_of_text = vectors.image_of_text.numpy()
    fold_of_image = fold_of(sample.image_key, settings.folds, seed=settings.seed)
    fold_sizes = np.bincount(fold_of_image[image_of_text], minlength=settings.folds)
    reason = too_little(vectors, rows, settings)
    if not reason and fold_sizes.min() < FEWEST_IN_A_FOLD:
        reason = (
            f"a part of the sample holds {fold_sizes.min()} pairs, too few to compare, so no pair is judged"
        )
    if reason:
        return Model([], FittedScores(None, None, reason), np.zeros(0), settings.seed, len(rows))
    groups = Groups(group_lookalikes(vectors.images.numpy()), number_texts(vectors.texts))
    judges, given, wrong, wrong_images = [], [], [], []
    for number in range(settings.folds):
        seed = settings.seed * settings.folds + number
        here = rows[fold_of_image[image_of_text] == number]
        witnesses = learn_witnesses(
            vectors,
            _others(image_of_text, groups, fold_of_image, number),
            settings,
            seed=seed,
            on_step=steps_of_part(progress, number, settings),
        )
        hearing = hear_witnesses(vectors, groups, witnesses, here, settings, seed=seed, num_images=num_images)
        of_given = hearing.competition.standing(image_of_text[here], here).statistic
        of_wrong = hearing.wrong_statistic()
        middle, width = scale_of(of_wrong)
        given.append((of_given - middle) / width)
        wrong.append((of_wrong - middle) / width)
        wrong_images.append(hearing.wrong.image)
        pool = _pool(sample, hearing, here, seed=seed)
        judges.append(FoldJudge(witnesses, hearing.says, middle, width, pool))
    given_images = np.concatenate(
        [image_of_text[rows[fold_of_image[image_of_text] == k]] for k in range(settings.folds)]
    )
    scores = fit_scores(
        np.concatenate(given),
        np.concatenate(wrong),
        groups.of_image[given_images],
        groups.of_image[np.concatenate(wrong_images)],
        seed=settings.seed,
    )
    return Model(judges, scores, np.sort(np.concatenate(given)), settings.seed, len(rows))


def _others(image_of_text: np.ndarray, groups: Groups, fold_of_image: np.ndarray, fold: int) -> np.ndarray:
    """The pairs to learn from for a fold: none of its pictures, and none that looks like one of them."""
    seen_there = np.unique(groups.of_image[fold_of_image == fold])
    return np.flatnonzero(~np.isin(groups.of_image, seen_there)[image_of_text])


def _pool(sample: Sample, hearing: Hearing, rows: np.ndarray, *, seed: int) -> Pool:
    more = np.random.default_rng([seed, 2]).permutation(np.setdiff1d(rows, hearing.candidates))
    chosen = np.concatenate([hearing.candidates, more])[:LARGEST_POOL]
    images = sample.vectors.image_of_text.numpy()[chosen]
    words = ([names[k] for k in chosen] for names in (sample.pair_ids, sample.captions, sample.image_ids))
    return Pool(
        hearing.image_emb[torch.from_numpy(images)],
        hearing.text_emb[torch.from_numpy(chosen)],
        sample.image_key[images],
        min(len(hearing.candidates), len(chosen)),
        *words,
    )


def _numbers_of(pool_key: np.ndarray, image_key: np.ndarray) -> np.ndarray:
    """A number for each picture of a pool: that of the same picture in `image_key`, or one of its own behind them."""
    order = np.argsort(image_key)
    place = np.searchsorted(image_key, pool_key, sorter=order).clip(max=len(order) - 1)
    same = image_key[order[place]] == pool_key
    # Within the pool a picture can come twice, with several captions: its first number counts.
    _, first, member = np.unique(pool_key, return_index=True, return_inverse=True)
    return np.where(same, order[place], len(image_key) + first[member.reshape(-1)]).astype(np.int64)
