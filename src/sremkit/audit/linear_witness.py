"""The first witness: the linear maps under which the believed pairs agree best (canonical correlations).

    maximise corr(P'x, Q'y),  with the covariances held up by `ridge` times their mean variance

A wrong pair adds nothing to the covariance of images with texts on average, and as much as a right one to the
covariances within images and within texts. So shuffled pairs shrink the correlations and turn no direction.
It is solved in closed form, in seconds. Reference: Hotelling 1936; Vinod 1976 for the ridge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sremkit.models.similarity import unit

DIRECTIONS = 256
RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class LinearWitness:
    """Maps an image and a text into one space, where their cosine says how well they fit."""

    image_mean: Tensor  # (d,)
    image_map: Tensor  # (d, k)
    text_mean: Tensor  # (e,)
    text_map: Tensor  # (e, k)

    def encode_images(self, images: Tensor) -> Tensor:
        return unit((images - self.image_mean) @ self.image_map)

    def encode_texts(self, texts: Tensor) -> Tensor:
        return unit((texts - self.text_mean) @ self.text_map)


def fit_linear_witness(
    images: Tensor,
    texts: Tensor,
    image_of_text: Tensor,
    belief: Tensor,
    *,
    ridge: float = RIDGE,
    directions: int = DIRECTIONS,
) -> LinearWitness:
    """Fit to pairs of which pair k counts `belief[k]` times.

    Args:
        images: (n, d); texts: (m, e) with image `image_of_text[k]` each.
    """
    mass = belief.sum().clamp_min(1e-12)
    share = belief / mass  # (m,) sums to 1
    share_of_image = torch.zeros(len(images)).index_add_(0, image_of_text, share)  # (n,)
    image_mean, text_mean = share_of_image @ images, share @ texts
    x, y = images - image_mean, texts - text_mean
    # The texts of an image are added up first, so that the large product runs over images and not over pairs.
    told = torch.zeros(len(images), texts.shape[1]).index_add_(0, image_of_text, share[:, None] * y)  # (n, e)
    lower_x = _cholesky(x.T @ (share_of_image[:, None] * x), ridge)
    lower_y = _cholesky(y.T @ (share[:, None] * y), ridge)
    between = (x.T @ told).double()  # (d, e)
    whitened = torch.linalg.solve_triangular(lower_x, between, upper=False)
    whitened = torch.linalg.solve_triangular(lower_y, whitened.T, upper=False).T
    u, correlations, v = torch.linalg.svd(whitened, full_matrices=False)
    kept = correlations[:directions]
    # A direction counts as much as its two sides agree; without that, noise in hundreds of directions drowns it.
    image_map = torch.linalg.solve_triangular(lower_x.T, u[:, : len(kept)] * kept, upper=True)
    text_map = torch.linalg.solve_triangular(lower_y.T, v[: len(kept)].T * kept, upper=True)
    return LinearWitness(image_mean, image_map.float(), text_mean, text_map.float())


def _cholesky(covariance: Tensor, ridge: float) -> Tensor:
    covariance = covariance.double()
    floor = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    return torch.linalg.cholesky(covariance + floor * torch.eye(len(covariance), dtype=covariance.dtype))
