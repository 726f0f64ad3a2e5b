"""The weights of training pairs, by which ridge CCA counts them: high for pairs that probably match.

A cross-fitting inside of the training pairs: ridge CCA on two thirds of the images scores the other pairs. With z_k the
statistic of pair k in standard deviations from the mean,

    c_k = sigmoid(STEEPNESS (z_k + OFFSET))

which also lowers the weight of near mismatches, of which the density ratio with random negatives is not aware. Pairs
that are held out in the outer cross-fitting take no part.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.scoring.calibration import MIN_PAIRS
from sremkit.audit.scoring.candidates import CandidateSoftmax, concat_weighted, ensemble_weights
from sremkit.audit.scoring.ridge_cca import fit_root_cca

INNER_FOLDS = 3
STEEPNESS, OFFSET = 4.0, 0.3


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
