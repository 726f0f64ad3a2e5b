"""One fold of the cross-fitting: an ensemble trained on the other folds, and its scores of the held-out pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.scoring.calibration import null_scale
from sremkit.audit.scoring.candidates import (
    CandidateScores,
    CandidateSoftmax,
    EnsembleWeight,
    PairScorer,
    concat_weighted,
    ensemble_weights,
    find_better,
)
from sremkit.audit.scoring.dual_encoder import DualEncoderScorer, OnStep, train_dual_encoder
from sremkit.audit.scoring.folds import Folds
from sremkit.audit.scoring.negatives import (
    MAX_ROUNDS,
    NO_NEAR_NEGATIVES,
    NO_NEGATIVES,
    RandomNegatives,
    draw_near_negatives,
    draw_negatives,
)
from sremkit.audit.scoring.ridge_cca import estimate_clean_prob, fit_root_cca
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.audit.scoring.zero_shot import MIN_FITTED_PAIRS, ZeroShot
from sremkit.data.pairs import MISSING

SEED_STRIDE = 1_000_003  # between the seeds of a fold's dual encoders; the folds' own seeds are consecutive
MAX_POOL = 5_000  # pairs of a fold that a fold model keeps, as candidates and better fits for other pairs


@dataclass(frozen=True, eq=False)
class FoldScores:
    """Scores of the f held-out pairs of a fold, and of w random negatives drawn from them."""

    rows: np.ndarray  # (f,) which pairs
    statistic: np.ndarray  # (f,), and so on: see `CandidateScores`
    energy_i2t: np.ndarray
    energy_t2i: np.ndarray
    rank_i2t: np.ndarray
    rank_t2i: np.ndarray
    better_text: np.ndarray  # (f,) row, or MISSING
    better_image: np.ndarray  # (f,) number of an image, or MISSING
    null_statistic: np.ndarray  # (w,)
    null_block: np.ndarray  # (w,) which block of pairs each was drawn from
    near_statistic: np.ndarray  # (v,) of near negatives, see negatives.py
    near_place: np.ndarray  # (v,) which of the f pairs each was made of
    near_kind: np.ndarray  # (v,) int64, a place in `NEAR_KINDS`
    candidates: int


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Pairs by the ensemble of a fold model, and behind them the pairs of its pool."""

    image_emb: Tensor  # (n + p, d)
    text_emb: Tensor  # (m + p, d)
    image_of_text: Tensor  # (m + p,)
    num_pairs: int  # m


@dataclass(frozen=True, eq=False)
class FoldModel:
    """Scores pairs that were not fitted on: an ensemble, and p held-out pairs of its fold to compare others with."""

    scorers: Sequence[PairScorer]
    weights: Sequence[EnsembleWeight]
    null_mean: float
    null_std: float
    image_emb: Tensor  # (p, d) ensemble vectors; the first `candidates` pairs are the candidates
    text_emb: Tensor  # (p, d)
    image_key: np.ndarray  # (p,)
    rows: np.ndarray  # (p,) rows of the fitted pairs
    images: np.ndarray  # (p,) their image numbers
    candidates: int

    @torch.no_grad()
    def encode(self, images: Tensor, texts: Tensor, image_of_text: Tensor, image_key: np.ndarray) -> EncodedPairs:
        """Encode text k of (m, e) with image `image_of_text[k]` of (n, d)."""
        encoded = [(s.encode_images(images), s.encode_texts(texts)) for s in self.scorers]
        image_emb, text_emb = concat_weighted(encoded, self.weights)
        image_emb, text_emb = torch.cat([image_emb, self.image_emb]), torch.cat([text_emb, self.text_emb])
        pool_images = torch.from_numpy(number_pool_images(self.image_key, image_key))
        return EncodedPairs(image_emb, text_emb, torch.cat([image_of_text, pool_images]), len(texts))

    def score(self, pairs: EncodedPairs) -> CandidateScores:
        """Scores of the pairs; the statistic is in standard deviations of the null distribution."""
        candidates = torch.arange(pairs.num_pairs, pairs.num_pairs + self.candidates)
        softmax = CandidateSoftmax(pairs.image_emb, pairs.text_emb, pairs.image_of_text, candidates)
        own = np.arange(pairs.num_pairs)
        scores = softmax.score(pairs.image_of_text[: pairs.num_pairs].numpy(), own)
        return scores._replace(statistic=(scores.statistic - self.null_mean) / self.null_std)

    def find_better(self, pairs: EncodedPairs) -> tuple[np.ndarray, np.ndarray]:
        """Row of the text and number of the image of the pool that fit each pair better, or MISSING."""
        num_pairs = pairs.num_pairs
        text, image = find_better(
            pairs.image_emb,
            pairs.text_emb,
            pairs.image_of_text,
            np.arange(len(pairs.image_emb)),  # without groups of near-duplicates
            np.arange(num_pairs),
            seed=0,
            pool_rows=np.arange(num_pairs, len(pairs.text_emb)),
        )
        better_text = np.where(text == MISSING, MISSING, self.rows[text.clip(num_pairs) - num_pairs])
        pool_images = pairs.image_of_text[num_pairs:].tolist()
        image_of_number = dict(zip(pool_images[::-1], self.images[::-1].tolist(), strict=True))
        return better_text, np.array([image_of_number.get(number, MISSING) for number in image.tolist()])


def number_pool_images(pool_key: np.ndarray, image_key: np.ndarray) -> np.ndarray:
    """A number for each image of the pool: of an equal image in `image_key`, so that it is no candidate for itself,
    or a new one behind those, equal for the same image with several captions."""
    order = np.argsort(image_key)
    place = np.searchsorted(image_key, pool_key, sorter=order).clip(max=len(order) - 1)
    same = image_key[order[place]] == pool_key
    _, first, member = np.unique(pool_key, return_index=True, return_inverse=True)
    return np.where(same, order[place], len(image_key) + first[member.reshape(-1)]).astype(np.int64)


def train_scorers(
    vectors: PairVectors, rows: np.ndarray, settings: ScoringSettings, *, seed: int, on_step: OnStep | None = None
) -> list[PairScorer]:
    """Fit the ensemble to the pairs `rows`: ridge CCA weighted by clean probability, and dual encoders, if any.

    With vectors of one space their cosine is added; of few pairs it is the only scorer.
    """
    zero_shot = [ZeroShot()] if settings.zero_shot else []
    if zero_shot and len(rows) < MIN_FITTED_PAIRS:
        return list(zero_shot)
    pairs = torch.from_numpy(rows)
    texts, image_of_text = vectors.texts[pairs], vectors.image_of_text[pairs]
    clean_prob = estimate_clean_prob(
        vectors.images, texts, image_of_text, vectors.group_of_image, candidates=settings.candidates, seed=seed
    )
    clean_prob[torch.from_numpy(vectors.is_trusted[rows])] = 1.0
    cca = fit_root_cca(vectors.images, texts, image_of_text, clean_prob)
    return [cca, *train_dual_encoders(vectors, rows, settings, seed=seed, on_step=on_step), *zero_shot]


def train_dual_encoders(
    vectors: PairVectors, rows: np.ndarray, settings: ScoringSettings, *, seed: int, on_step: OnStep | None = None
) -> list[DualEncoderScorer]:
    """Train the dual encoders of the settings on the pairs `rows`; their steps are counted together."""
    count = settings.dual_encoders

    def steps_of(number: int) -> OnStep | None:
        """Counts the steps of one dual encoder among those of all."""
        if on_step is None:
            return None
        return lambda done, total: on_step(number * total + done, count * total)

    return [
        train_dual_encoder(vectors, rows, settings, seed=seed + k * SEED_STRIDE, on_step=steps_of(k))
        for k in range(count)
    ]


@torch.no_grad()
def score_fold(
    vectors: PairVectors,
    scorers: Sequence[PairScorer],
    rows: np.ndarray,
    settings: ScoringSettings,
    *,
    seed: int,
    folds: Folds,
    repeat: int = 0,
    num_images: int | None = None,
    keep_model: bool = False,
) -> tuple[FoldScores, FoldModel | None]:
    """Score the held-out pairs `rows` and random negatives of them.

    Args:
        folds: of all pairs; `rows` is a fold of the division `repeat`.
        repeat: number of the division. Near negatives and better fits are those of the first one.
        num_images: number of images in the collection, where `vectors` is a sample of it. Then a model is made for
            pairs that were not fitted on, and better fits are left to it.
        keep_model: make such a model of a whole collection, too.
    """
    image_of_text = vectors.image_of_text.numpy()
    # From here on images and texts are numbered within the fold, which alone is encoded.
    used, own_image = np.unique(image_of_text[rows], return_inverse=True)
    own_image, places = own_image.reshape(-1), np.arange(len(rows))
    images, texts = vectors.images[torch.from_numpy(used)], vectors.texts[torch.from_numpy(rows)]
    encoded = [(scorer.encode_images(images), scorer.encode_texts(texts)) for scorer in scorers]
    negatives, null_block = _negatives_of_blocks(
        vectors, rows, folds, settings, repeat=repeat, in_fold=len(used) / (num_images or vectors.num_used)
    )
    null_image, null_text = np.searchsorted(used, negatives.image), np.searchsorted(rows, negatives.text)
    masked = np.where(negatives.masked == MISSING, MISSING, np.searchsorted(used, negatives.masked))
    weights = ensemble_weights(encoded, (own_image, places), (null_image, null_text))
    image_emb, text_emb = concat_weighted(encoded, weights)
    rng = np.random.default_rng([seed, 1])
    candidates = np.sort(rng.permutation(places)[: settings.candidates])
    image_of_place = torch.from_numpy(own_image)
    softmax = CandidateSoftmax(image_emb, text_emb, image_of_place, torch.from_numpy(candidates))
    null_statistic = softmax.score(null_image, null_text, masked).statistic
    near, near_statistic = NO_NEAR_NEGATIVES, np.zeros(0)
    if repeat == 0:
        groups = vectors.group_of_image[used], vectors.group_of_text[rows]
        near = draw_near_negatives(images.numpy(), texts.numpy(), own_image, *groups, seed=seed)
        near_statistic = softmax.score(near.image, near.text, near.masked).statistic
    better_text, better_image = np.full((2, len(rows)), MISSING)
    model = None
    if num_images is None and repeat == 0:
        found_text, found_image = find_better(
            image_emb, text_emb, image_of_place, vectors.group_of_image[used], places, seed=seed
        )
        better_text = np.where(found_text == MISSING, MISSING, rows[found_text])
        better_image = np.where(found_image == MISSING, MISSING, used[found_image])
    if num_images is not None or keep_model:
        others = np.random.default_rng([seed, 2]).permutation(np.setdiff1d(places, candidates))
        pool = np.concatenate([candidates, others])[:MAX_POOL]
        model = FoldModel(
            scorers,
            weights,
            *null_scale(null_statistic),
            image_emb[torch.from_numpy(own_image[pool])],
            text_emb[torch.from_numpy(pool)],
            vectors.image_key[used[own_image[pool]]],
            rows[pool],
            used[own_image[pool]],
            candidates=min(len(candidates), len(pool)),
        )
    scores = FoldScores(
        rows,
        *softmax.score(own_image, places),
        better_text=better_text,
        better_image=better_image,
        null_statistic=null_statistic,
        null_block=null_block,
        near_statistic=near_statistic,
        near_place=near.source,
        near_kind=near.kind,
        candidates=len(candidates),
    )
    return scores, model


def _negatives_of_blocks(
    vectors: PairVectors,
    rows: np.ndarray,
    folds: Folds,
    settings: ScoringSettings,
    *,
    repeat: int,
    in_fold: float,
) -> tuple[RandomNegatives, np.ndarray]:
    """Random negatives of each block of a fold, the same in every division; and the block of each, (w,)."""
    rounds = int(np.clip(np.ceil(settings.negatives / np.count_nonzero(vectors.readable)), 1, MAX_ROUNDS))
    if len(rows) == 0:
        return NO_NEGATIVES, np.zeros(0, dtype=np.int64)
    block = folds.block[rows]
    parts, numbers = [], np.unique(block)
    for number in numbers.tolist():
        parts.append(
            draw_negatives(
                rows[block == number],
                vectors.image_of_text.numpy(),
                vectors.group_of_image,
                vectors.group_of_text,
                rounds=rounds,
                in_fold=in_fold,
                seed=settings.seed * folds.num_blocks + number,
                repeat=repeat,
            )
        )
    joined = RandomNegatives(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return joined, np.repeat(numbers, [len(part.text) for part in parts])
