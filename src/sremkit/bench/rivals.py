"""Other detectors of wrong pairs, for the bench of the audit. A pair is image x_i with text y_i; distances are cosine.

    similarity    cos(x_i, y_i) in a shared space: ridge CCA fitted on the other folds
    cca           the same with a ridge CCA that was fitted on the pair as well
    deep-knn      mean of cos(y_i, y_j) over the k nearest images x_j                                   [eq:deep-knn]
    discrepancy   mean of cos(x_i, x_l) over the neighbours l of the neighbours j of y_i in text space  [eq:discrepancy]
    cca-knn       similarity and neighbour consistency (deep-knn in both directions), standardised and added
    lemon         -(d_mm(i) + β s_n + γ s_m), with the constants that its authors recommend             [eq:lemon]
    lemon-tuned   the same, its constants chosen on labelled pairs

    s_n = mean over the k nearest images of d_text(y_i, y_j) exp(-τ1 d_img) exp(-τ2 d_mm(j))
    s_m = the same with the roles of images and texts exchanged

Scores are high for right pairs. No encoder of images and texts in one space comes with the package, so the shared space
of all of them is the ridge CCA. References: Bahri et al., ICML 2020 (deep k-NN: here labels are text vectors);
Thomas and Kovashka, CVPR 2022 (discrepancy); Zhang et al., ICML 2025 (LEMoN).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.scoring.folds import balanced_folds
from sremkit.audit.scoring.ridge_cca import RidgeCCA, fit_ridge_cca
from sremkit.audit.scoring.types import PairVectors
from sremkit.ops.functional import l2_normalize

FOLDS = 3
K = 30  # neighbours
ROWS_PER_CHUNK = 512
LABELLED = 0.2  # fraction of the pairs whose labels `lemon-tuned` is given
TUNED_K = (1, 2, 5, 10, 20, 30, 50)
DRAWS = 200  # of the other constants, for each number of neighbours

Space = tuple[np.ndarray, Tensor, Tensor]  # rows (f,) to score in it; unit vectors of images and texts, (m, d) each


@dataclass(frozen=True)
class LemonConstants:
    """β, γ, τ1, τ2 and k of LEMoN; the defaults are its authors' fixed ones."""

    beta: float = 5.0
    gamma: float = 5.0
    tau1: float = 0.1
    tau2: float = 5.0
    k: int = 30


@dataclass(frozen=True, eq=False)
class Detection:
    """What a detector finds."""

    score: np.ndarray  # (m,) high for right pairs
    flagged: np.ndarray | None = None  # (m,) bool, of detectors that have a cutoff
    rate: tuple[float, float, float] | None = None  # the noise rate with its interval, of detectors that estimate it
    measured: np.ndarray | None = None  # (m,) bool: the pairs whose labels were not used; None: all


class Neighbors(NamedTuple):
    """The k nearest of each row, without itself."""

    rows: Tensor  # (f, k) int64
    cosine: Tensor  # (f, k)


def similarity(vectors: PairVectors, *, seed: int) -> np.ndarray:
    """Cosine in the space of a ridge CCA that was not fitted on the pair's image."""
    score = np.zeros(len(vectors.texts))
    for rows, image_emb, text_emb in held_out_spaces(vectors, seed=seed):
        score[rows] = (image_emb[rows] * text_emb[rows]).sum(dim=1).numpy()
    return score


def cca(vectors: PairVectors, *, seed: int) -> np.ndarray:
    """Cosine in the space of a ridge CCA that was fitted on all pairs."""
    image_emb, text_emb = _encode(_fit_cca(vectors, np.arange(len(vectors.texts))), vectors)
    return (image_emb * text_emb).sum(dim=1).double().numpy()


def deep_knn(vectors: PairVectors, *, seed: int, k: int = K) -> np.ndarray:
    """Mean cosine of the text with the texts of the nearest images."""
    image_emb, text_emb = _raw_spaces(vectors)
    return neighbor_consistency(image_emb, text_emb, k)


def discrepancy(vectors: PairVectors, *, seed: int, k: int = K) -> np.ndarray:
    """Mean cosine of the image with the images of the second neighbours of the text."""
    image_emb, text_emb = _raw_spaces(vectors)
    return second_neighbor_consistency(text_emb, image_emb, k)


def cca_knn(vectors: PairVectors, *, seed: int) -> np.ndarray:
    """Similarity plus neighbour consistency in both directions, each with mean 0 and variance 1."""
    image_emb, text_emb = _raw_spaces(vectors)
    consistency = neighbor_consistency(image_emb, text_emb, K) + neighbor_consistency(text_emb, image_emb, K)
    return _standardized(similarity(vectors, seed=seed)) + _standardized(consistency)


def lemon(vectors: PairVectors, *, seed: int) -> np.ndarray:
    """LEMoN with fixed constants, in the space of the ridge CCA."""
    return -lemon_distance(lemon_terms(held_out_spaces(vectors, seed=seed), K), LemonConstants())


def lemon_tuned(vectors: PairVectors, *, seed: int, is_wrong: np.ndarray, precision: float) -> Detection:
    """LEMoN with constants, and a cutoff, chosen on a labelled part of the pairs, which is not measured.

    The constants with the best F1 over all cutoffs are chosen, as its authors do; here by random search.
    """
    rng = np.random.default_rng([seed, 7])
    labelled = np.zeros(len(is_wrong), dtype=bool)
    labelled[rng.permutation(len(is_wrong))[: round(LABELLED * len(is_wrong))]] = True
    terms = lemon_terms(held_out_spaces(vectors, seed=seed), max(TUNED_K))
    on_labelled = terms.select(labelled)
    best, best_f1 = LemonConstants(), -1.0
    for k in TUNED_K:
        if k > terms.image_distance.shape[1]:
            break
        for constants in _draw_constants(k, rng):
            f1 = best_f1_over_cutoffs(is_wrong[labelled], lemon_distance(on_labelled, constants))
            if f1 > best_f1:
                best, best_f1 = constants, f1
    distance = lemon_distance(terms, best)
    cutoff = precise_cutoff(is_wrong[labelled], distance[labelled], precision)
    return Detection(-distance, flagged=distance >= cutoff, measured=~labelled)


class LemonTerms(NamedTuple):
    """What LEMoN's score of f pairs is made of. Neighbours are sorted by distance."""

    match_distance: np.ndarray  # (f,) d_mm
    image_distance: np.ndarray  # (f, k) -cosine of the image and the neighbouring images
    text_of_image: np.ndarray  # (f, k) 1 - cosine of the text and the texts of these
    match_of_image: np.ndarray  # (f, k) d_mm of these pairs
    text_distance: np.ndarray  # (f, k) the same with the roles of image and text exchanged
    image_of_text: np.ndarray
    match_of_text: np.ndarray

    def select(self, chosen: np.ndarray) -> LemonTerms:
        return LemonTerms(*(values[chosen] for values in self))


def lemon_terms(spaces: Sequence[Space], k: int) -> LemonTerms:
    """Neighbours and distances of every pair among all pairs, in the space of its fold."""
    match = torch.zeros_like(spaces[0][1][:, 0])  # (m,)
    for rows, image_emb, text_emb in spaces:
        match[rows] = 1 - (image_emb[rows] * text_emb[rows]).sum(dim=1)
    k = min(k, len(match) - 1)
    arrays = [np.zeros(len(match)), *(np.zeros((len(match), k)) for _ in range(6))]
    for rows, image_emb, text_emb in spaces:
        arrays[0][rows] = match[rows].numpy()
        for place, (near, other) in enumerate(((image_emb, text_emb), (text_emb, image_emb))):
            found = find_neighbors(near, k, rows=torch.from_numpy(rows))
            chunks = zip(other[rows].split(ROWS_PER_CHUNK), found.rows.split(ROWS_PER_CHUNK), strict=True)
            across = 1 - torch.cat([torch.einsum("fd,fkd->fk", own, other[index]) for own, index in chunks])
            for offset, values in enumerate((-found.cosine, across, match[found.rows])):
                arrays[1 + 3 * place + offset][rows] = values.numpy()
    return LemonTerms(*arrays)


def lemon_distance(terms: LemonTerms, constants: LemonConstants) -> np.ndarray:
    """LEMoN's score, high for wrong pairs: (f,)."""
    c, near = constants, slice(None, constants.k)
    sums = [
        (across * np.exp(-c.tau1 * distance) * np.exp(-c.tau2 * match)).mean(axis=1)
        for distance, across, match in (
            (terms.image_distance[:, near], terms.text_of_image[:, near], terms.match_of_image[:, near]),
            (terms.text_distance[:, near], terms.image_of_text[:, near], terms.match_of_text[:, near]),
        )
    ]
    return terms.match_distance + c.beta * sums[0] + c.gamma * sums[1]  # [eq:lemon]


def neighbor_consistency(near: Tensor, other: Tensor, k: int) -> np.ndarray:
    """Mean cosine in the space `other` with the k nearest in the space `near`: (m,)."""
    found = find_neighbors(near, k).rows
    score = np.zeros(len(near))
    for rows in torch.arange(len(near)).split(ROWS_PER_CHUNK):
        mean = other[found[rows]].mean(dim=1)  # (c, d)
        score[rows] = (other[rows] * mean).sum(dim=1).numpy()  # [eq:deep-knn]
    return score


def second_neighbor_consistency(near: Tensor, other: Tensor, k: int) -> np.ndarray:
    """Mean cosine in the space `other` with the k nearest of the k nearest in the space `near`: (m,)."""
    nearest = find_neighbors(near, k).rows  # (m, k)
    score = np.zeros(len(near))
    for rows in torch.arange(len(near)).split(ROWS_PER_CHUNK):
        total = torch.zeros_like(other[rows])  # (c, d)
        for column in range(nearest.shape[1]):
            total += other[nearest[nearest[rows, column]]].sum(dim=1)
        score[rows] = (other[rows] * total).sum(dim=1).numpy() / nearest.shape[1] ** 2  # [eq:discrepancy]
    return score


def find_neighbors(unit: Tensor, k: int, rows: Tensor | None = None) -> Neighbors:
    """The k rows of the largest cosine for each of `rows`, by default all; unit vectors (m, d)."""
    rows = torch.arange(len(unit)) if rows is None else rows
    k = min(k, len(unit) - 1)
    found = []
    for chunk in rows.split(ROWS_PER_CHUNK):
        cosine = unit[chunk] @ unit.T  # (c, m)
        cosine[torch.arange(len(chunk)), chunk] = -torch.inf
        found.append(cosine.topk(k, dim=1))
    return Neighbors(torch.cat([f.indices for f in found]), torch.cat([f.values for f in found]))


def held_out_spaces(vectors: PairVectors, *, seed: int) -> list[Space]:
    """For each fold its rows, and the images and texts of all pairs by a ridge CCA fitted on the other folds."""
    image_of_text = vectors.image_of_text.numpy()
    fold = balanced_folds(image_of_text, vectors.group_of_image, FOLDS, seed=seed)
    return [
        (np.flatnonzero(fold == number), *_encode(_fit_cca(vectors, np.flatnonzero(fold != number)), vectors))
        for number in range(FOLDS)
    ]


def best_f1_over_cutoffs(is_wrong: np.ndarray, distance: np.ndarray) -> float:
    """The largest F1 of flagging the pairs with a distance above some cutoff."""
    found = np.cumsum(is_wrong[np.argsort(-distance, kind="stable")])
    flagged = np.arange(1, len(found) + 1)
    return float((2 * found / (flagged + max(int(found[-1]), 1))).max())


def precise_cutoff(is_wrong: np.ndarray, distance: np.ndarray, precision: float) -> float:
    """The lowest distance down to which the flagged pairs have this precision; infinity where none has."""
    order = np.argsort(-distance, kind="stable")
    reached = np.cumsum(is_wrong[order]) / np.arange(1, len(order) + 1) >= precision
    return float(distance[order[np.flatnonzero(reached)[-1]]]) if reached.any() else np.inf


def _draw_constants(k: int, rng: np.random.Generator) -> list[LemonConstants]:
    """The fixed constants with k neighbours, and constants drawn around them."""
    beta, gamma = 10 ** rng.uniform(-1, 2, (2, DRAWS))
    tau1, tau2 = rng.uniform(0, 10, (2, DRAWS))
    drawn = zip(beta.tolist(), gamma.tolist(), tau1.tolist(), tau2.tolist(), strict=True)
    return [replace(LemonConstants(), k=k), *(LemonConstants(*values, k=k) for values in drawn)]


def _fit_cca(vectors: PairVectors, rows: np.ndarray) -> RidgeCCA:
    pairs = torch.from_numpy(rows)
    return fit_ridge_cca(vectors.images, vectors.texts[pairs], vectors.image_of_text[pairs], torch.ones(len(rows)))


def _encode(space: RidgeCCA, vectors: PairVectors) -> tuple[Tensor, Tensor]:
    """Unit vectors of images and texts, one row a pair."""
    return space.encode_images(vectors.images)[vectors.image_of_text], space.encode_texts(vectors.texts)


def _raw_spaces(vectors: PairVectors) -> tuple[Tensor, Tensor]:
    """Unit vectors of images and texts as they were given, without their mean, one row a pair."""
    images, texts = (l2_normalize(x - x.mean(dim=0)) for x in (vectors.images, vectors.texts))
    return images[vectors.image_of_text], texts


def _standardized(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / max(float(values.std()), 1e-12)


#: Rivals that need no label.
UNSUPERVISED: dict[str, Callable[..., np.ndarray]] = {
    "similarity": similarity,
    "cca": cca,
    "deep-knn": deep_knn,
    "discrepancy": discrepancy,
    "cca-knn": cca_knn,
    "lemon": lemon,
}
