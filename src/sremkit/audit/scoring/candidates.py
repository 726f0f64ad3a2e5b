"""Candidate softmax: the log-probability, energies and ranks of a pair among a fixed set of candidate pairs.

    F_ij = sum over scorers k of a_k cos_k(image i, text j)                                   (ensemble logit)
    log P = log softmax of the pair among itself and the candidates, once over texts and once over images
    statistic = log P (i2t) + log P (t2i)
    E = -log sum exp F over the same                                                          [eq:energy]

All pairs of a fold have the same candidates; those that share the pair's image are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sremkit.data.pairs import MISSING

LOGIT_STD = 5.0  # standard deviation of F among random negatives
MASK_VALUE = -1e9
PAIRS_PER_CHUNK = 4096
QUERIES_PER_CHUNK = 256
MIN_LOGIT_MARGIN = math.log(10.0)  # a better fit has odds of ten to one against the given pair
MAX_SUGGESTIONS_FROM = 20_000  # texts, and images, that a better fit is sought among


class PairScorer(Protocol):
    """Maps images and texts to unit vectors in one space, where the cosine is the score of a pair."""

    def encode_images(self, images: Tensor) -> Tensor: ...

    def encode_texts(self, texts: Tensor) -> Tensor: ...


Encoded = tuple[Tensor, Tensor]  # a scorer's vectors of images (n, d) and texts (m, d)
Rows = tuple[np.ndarray, np.ndarray]  # image numbers and text rows of some pairs


class EnsembleWeight(NamedTuple):
    """The vectors of one scorer are divided by `divisor` and multiplied by `factor`; a_k is the square of both."""

    divisor: float
    factor: float


def ensemble_weights(encoded: Sequence[Encoded], positives: Rows, negatives: Rows) -> list[EnsembleWeight]:
    """Weight each scorer by how far, if at all, given pairs score above random negatives, in standard deviations."""
    spreads, separations = [], []
    for image_emb, text_emb in encoded:
        of_positives, of_negatives = (
            (image_emb[images] * text_emb[texts]).sum(dim=1).double() for images, texts in (positives, negatives)
        )
        measurable = len(of_negatives) > 1
        spread = max(float(of_negatives.std()), 1e-6) if measurable else 1.0
        distance = float(of_positives.mean() - of_negatives.mean()) if measurable else 0.0
        separations.append(max(distance / spread, 0.0))
        spreads.append(spread)
    total = max(sum(separations), 1e-9)
    return [
        EnsembleWeight(spread**0.5, (LOGIT_STD * separation / total) ** 0.5)
        for spread, separation in zip(spreads, separations, strict=True)
    ]


def concat_weighted(encoded: Sequence[Encoded], weights: Sequence[EnsembleWeight]) -> Encoded:
    """Concatenate the weighted vectors of all scorers: image_emb (n, d) and text_emb (m, d) with products F."""
    images, texts = (
        torch.cat([w.factor * (vectors[k] / w.divisor) for vectors, w in zip(encoded, weights, strict=True)], dim=1)
        for k in (0, 1)
    )
    return images, texts


class CandidateScores(NamedTuple):
    """Scores of p pairs among the candidates."""

    statistic: np.ndarray  # (p,) float64: high is good
    energy_i2t: np.ndarray  # (p,) float32
    energy_t2i: np.ndarray
    rank_i2t: np.ndarray  # (p,) int64, from 1
    rank_t2i: np.ndarray


class CandidateSoftmax:
    """Compares pairs with the candidate pairs in the rows `candidates` (c,).

    The products of `image_emb` (n, d) and `text_emb` (m, d) are the logits F.
    """

    def __init__(self, image_emb: Tensor, text_emb: Tensor, image_of_text: Tensor, candidates: Tensor) -> None:
        self.image_emb = image_emb
        self.text_emb = text_emb
        self.candidate_texts = candidates
        self.candidate_images = image_of_text[candidates]  # (c,)
        self._texts = text_emb[candidates].T.contiguous()  # (d, c)
        self._images = image_emb[self.candidate_images].T.contiguous()  # (d, c)

    def score(self, images: np.ndarray, texts: np.ndarray, masked: np.ndarray | None = None) -> CandidateScores:
        """Score image `images[k]` with text `texts[k]`, for which `masked[k]` is no candidate, for every k."""
        masked = np.full(len(images), MISSING) if masked is None else masked
        parts = [
            self._chunk(*(torch.from_numpy(a[start : start + PAIRS_PER_CHUNK]) for a in (images, texts, masked)))
            for start in range(0, len(images), PAIRS_PER_CHUNK)
        ]
        if not parts:
            return CandidateScores(*(np.zeros(0) for _ in CandidateScores._fields))
        return CandidateScores(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _chunk(self, images: Tensor, texts: Tensor, masked: Tensor) -> CandidateScores:
        own = (self.image_emb[images] * self.text_emb[texts]).sum(dim=1)  # (p,)
        same_image = images[:, None] == self.candidate_images  # (p, c)
        same_text = texts[:, None] == self.candidate_texts
        masked_image = masked[:, None] == self.candidate_images
        log_probs, energies, ranks = [], [], []
        for emb, queries, others, absent in (
            (self.image_emb, images, self._texts, same_image | same_text),
            (self.text_emb, texts, self._images, same_image | masked_image),
        ):
            distinct, place = queries.unique(return_inverse=True)  # negatives have each image and text many times
            logits = (emb[distinct] @ others)[place].masked_fill_(absent, MASK_VALUE)  # (p, c)
            log_sum = torch.logaddexp(own, logits.logsumexp(dim=1))
            log_probs.append(own - log_sum)
            energies.append((-log_sum).numpy())  # [eq:energy]
            ranks.append(1 + (logits >= own[:, None]).sum(dim=1).numpy())  # a tie counts against the pair
        statistic = (log_probs[0].double() + log_probs[1]).numpy()
        return CandidateScores(statistic, *energies, *ranks)


def find_better(
    image_emb: Tensor,
    text_emb: Tensor,
    image_of_text: Tensor,
    group_of_image: np.ndarray,
    rows: np.ndarray,
    *,
    seed: int,
    pool_rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """For each pair, the best other text for its image and the best other image for its text, if clearly better.

    Texts that were given with the same image, or with a near-duplicate of it, are left out.

    Args:
        rows: (f,) the pairs.
        pool_rows: the pairs to search, by default `rows`; at most MAX_SUGGESTIONS_FROM texts and images of them.

    Returns:
        (f,) row of the better text and (f,) number of the better image, or MISSING.
    """
    pair_rows = torch.from_numpy(rows)
    group = torch.from_numpy(group_of_image)
    rng = np.random.default_rng(seed)
    pool_rows = rows if pool_rows is None else pool_rows
    texts = torch.from_numpy(np.sort(rng.permutation(pool_rows)[:MAX_SUGGESTIONS_FROM]))
    pair_images = image_of_text[pair_rows]
    distinct_images = torch.from_numpy(np.unique(pair_images.numpy()))
    pool_images = np.unique(image_of_text[torch.from_numpy(pool_rows)].numpy())
    images = torch.from_numpy(np.sort(rng.permutation(pool_images)[:MAX_SUGGESTIONS_FROM]))
    min_logit = (image_emb[pair_images] * text_emb[pair_rows]).sum(dim=1) + MIN_LOGIT_MARGIN  # (f,)

    best_text, text_logit = _best(image_emb, distinct_images, text_emb, texts, groups=(group, group[image_of_text]))
    place = torch.searchsorted(distinct_images, pair_images)
    better_text = torch.where(text_logit[place] > min_logit, best_text[place], MISSING)

    # The given image, or a near-duplicate, may itself be the best: then none is better, so it is not left out.
    best_image, image_logit = _best(text_emb, pair_rows, image_emb, images)
    better_image = torch.where(image_logit > min_logit, best_image, MISSING)
    same = group[best_image] == group[pair_images]
    return better_text.numpy(), better_image.masked_fill(same, MISSING).numpy()


def _best(
    queries: Tensor,
    query_rows: Tensor,
    others: Tensor,
    other_rows: Tensor,
    *,
    groups: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """For each query the row of the best other and its logit; `groups` of queries and others exclude equal ones."""
    columns = others[other_rows].T.contiguous()  # (d, o)
    best, logit = [], []
    for chunk in query_rows.split(QUERIES_PER_CHUNK):
        logits = queries[chunk] @ columns  # (q, o)
        if groups is not None:
            logits.masked_fill_(groups[0][chunk][:, None] == groups[1][other_rows], -math.inf)
        top = logits.max(dim=1)
        best.append(other_rows[top.indices])
        logit.append(top.values)
    return torch.cat(best), torch.cat(logit)
