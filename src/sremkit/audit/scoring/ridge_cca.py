"""Ridge CCA: the linear maps under which images and texts of the pairs correlate best.

    maximise corr(P'x, Q'y),  with `ridge` times the mean variance added to both covariances

Pairs are weighted by their clean probability. A mismatched pair adds nothing to the cross-covariance on average, and
as much as a matched one to the covariances of images and of texts: shuffled pairs shrink the correlations and turn no
direction. Solved in closed form. References: Hotelling 1936; Vinod 1976 for the ridge.

The clean probabilities are from a cross-fitting inside of the training pairs: ridge CCA on two thirds of the images
scores the other pairs. With z_k the statistic of pair k in standard deviations from the mean,

    c_k = sigmoid(STEEPNESS (z_k + OFFSET))

which also lowers the weight of near mismatches, of which the density ratio with random negatives is not aware. Pairs
that are held out in the outer cross-fitting take no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.audit.scoring.calibration import MIN_PAIRS
from sremkit.audit.scoring.candidates import CandidateSoftmax, concat_weighted, ensemble_weights

DIRECTIONS = 256
RIDGE = 1.0
IMAGE_RIDGE = 3.0  # of signed roots, which have more dimensions than the texts
INNER_FOLDS = 3
STEEPNESS, OFFSET = 4.0, 0.3


@dataclass(frozen=True, eq=False)
class RidgeCCA:
    """Projects images and texts to canonical directions, where the cosine is the score of a pair."""

    image_mean: Tensor  # (d,)
    image_map: Tensor  # (d, k)
    text_mean: Tensor  # (e,)
    text_map: Tensor  # (e, k)

    def encode_images(self, images: Tensor) -> Tensor:
        return F.normalize((images - self.image_mean) @ self.image_map, dim=-1)

    def encode_texts(self, texts: Tensor) -> Tensor:
        return F.normalize((texts - self.text_mean) @ self.text_map, dim=-1)


class RootCCA(RidgeCCA):
    """Ridge CCA of images whose vectors are replaced by their signed roots; texts are taken as they are."""

    def encode_images(self, images: Tensor) -> Tensor:
        return super().encode_images(signed_root(images))


def signed_root(vectors: Tensor) -> Tensor:
    """The root of each entry with its sign: pooled activations are skewed, and few large ones would dominate."""
    return vectors.sign() * vectors.abs().sqrt()


def fit_root_cca(images: Tensor, texts: Tensor, image_of_text: Tensor, clean_prob: Tensor) -> RootCCA:
    """Fit to m pairs as `fit_ridge_cca` does; only images that have texts are used."""
    used, image_of_text = image_of_text.unique(return_inverse=True)
    rooted = signed_root(images[used])
    if 2 * len(used) >= rooted.shape[1]:
        cca = fit_ridge_cca(rooted, texts, image_of_text, clean_prob, ridge=IMAGE_RIDGE, text_ridge=RIDGE)
        return RootCCA(**vars(cca))
    # Few images span few dimensions: in a basis of them the solution is the same, and the matrices are small.
    basis = torch.linalg.qr(rooted.T).Q  # (d, n)
    ridge = IMAGE_RIDGE * basis.shape[1] / basis.shape[0]  # of the mean variance over all d dimensions
    cca = fit_ridge_cca(rooted @ basis, texts, image_of_text, clean_prob, ridge=ridge, text_ridge=RIDGE)
    return RootCCA(basis @ cca.image_mean, basis @ cca.image_map, cca.text_mean, cca.text_map)


def fit_ridge_cca(
    images: Tensor,
    texts: Tensor,
    image_of_text: Tensor,
    clean_prob: Tensor,
    *,
    ridge: float = RIDGE,
    text_ridge: float | None = None,
    directions: int = DIRECTIONS,
) -> RidgeCCA:
    """Fit to m pairs.

    Args:
        images: (n, d); texts: (m, e), text k with image `image_of_text[k]`.
        clean_prob: (m,) the weight of each pair.
        text_ridge: of the texts, by default that of the images.
    """
    weight = clean_prob / clean_prob.sum().clamp_min(1e-12)  # (m,) sums to 1
    image_weight = torch.zeros(len(images)).index_add_(0, image_of_text, weight)  # (n,)
    image_mean, text_mean = image_weight @ images, weight @ texts
    x, y = images - image_mean, texts - text_mean
    # The texts of an image are summed first, so that the large product runs over images and not over pairs.
    text_sum = torch.zeros(len(images), texts.shape[1]).index_add_(0, image_of_text, weight[:, None] * y)  # (n, e)
    lower_x = _cholesky(x.T @ (image_weight[:, None] * x), ridge)
    lower_y = _cholesky(y.T @ (weight[:, None] * y), ridge if text_ridge is None else text_ridge)
    cross = (x.T @ text_sum).double()  # (d, e)
    whitened = torch.linalg.solve_triangular(lower_x, cross, upper=False)
    whitened = torch.linalg.solve_triangular(lower_y, whitened.T, upper=False).T
    u, v = _weighted_directions(whitened, directions)
    image_map = torch.linalg.solve_triangular(lower_x.T, u, upper=True)
    text_map = torch.linalg.solve_triangular(lower_y.T, v, upper=True)
    return RidgeCCA(image_mean, image_map.float(), text_mean, text_map.float())


def _weighted_directions(whitened: Tensor, directions: int) -> tuple[Tensor, Tensor]:
    """Left and right singular vectors (d, k) and (e, k) of the largest singular values, times these.

    Each direction is weighted by its correlation; otherwise noise in hundreds of directions outweighs the signal. By
    the eigenvectors of the smaller product: a third of the time of a singular value decomposition.
    """
    if whitened.shape[0] < whitened.shape[1]:
        v, u = _weighted_directions(whitened.T, directions)
        return u, v
    squares, right = torch.linalg.eigh(whitened.T @ whitened)  # rising
    v = right[:, -directions:].flip(1)
    return whitened @ v, v * squares[-directions:].flip(0).clamp_min(0.0).sqrt()


def _cholesky(covariance: Tensor, ridge: float) -> Tensor:
    covariance = covariance.double()
    floor = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    return torch.linalg.cholesky(covariance + floor * torch.eye(len(covariance), dtype=covariance.dtype))


@torch.no_grad()
def estimate_clean_prob(
    images: Tensor, texts: Tensor, image_of_text: Tensor, group_of_image: np.ndarray, *, candidates: int, seed: int
) -> Tensor:
    """The clean probability of m pairs, (m,); 1 where nothing can be told.

    Args:
        images: (n, d); texts: (m, e), text k with image `image_of_text[k]`.
        group_of_image: (n,) equal for near-duplicates, which stay in one inner fold.
        candidates: in the softmax of every pair.
    """
    ones = torch.ones(len(texts))
    image_number = image_of_text.numpy()
    groups = group_of_image[image_number]
    distinct = np.unique(groups)
    if len(texts) < 2 * MIN_PAIRS or len(distinct) < 2 * INNER_FOLDS:
        return ones
    rng = np.random.default_rng([seed, 3])
    fold_of_group = rng.permutation(np.arange(len(distinct)) % INNER_FOLDS)
    fold = fold_of_group[np.searchsorted(distinct, groups)]
    statistic = np.zeros(len(texts))
    for number in range(INNER_FOLDS):
        train, rows = (torch.from_numpy(np.flatnonzero(chosen)) for chosen in (fold != number, fold == number))
        cca = fit_root_cca(images, texts[train], image_of_text[train], ones[train])
        used, image = image_of_text[rows].unique(return_inverse=True)
        encoded = [(cca.encode_images(images[used]), cca.encode_texts(texts[rows]))]
        places = np.arange(len(rows))
        drawn = image.numpy()[rng.permutation(len(rows))]
        own = image.numpy()
        weights = ensemble_weights(encoded, (own, places), (drawn, places))
        among = torch.from_numpy(np.sort(rng.permutation(len(rows))[:candidates]))
        softmax = CandidateSoftmax(*concat_weighted(encoded, weights), image, among)
        found = softmax.score(own, places).statistic
        statistic[rows.numpy()] = (found - found.mean()) / max(float(found.std()), 1e-9)
    return torch.sigmoid(STEEPNESS * (torch.from_numpy(statistic).float() + OFFSET))
