"""Random negatives: texts of a fold with images of the same fold that they were not given with.

Their scores, by models that have not seen the fold, are the null distribution: but for chance, the distribution of
the mismatched pairs among the given ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sremkit.data.pairs import MISSING

MAX_ROUNDS = 50


class RandomNegatives(NamedTuple):
    """Pairs of a text and an image of one fold that were not given together."""

    image: np.ndarray  # (w,) number of the image
    text: np.ndarray  # (w,) row of the text
    masked: np.ndarray  # (w,) an image that must not be a candidate for the text, or MISSING


def draw_negatives(
    rows: np.ndarray,
    image_of_text: np.ndarray,
    group_of_image: np.ndarray,
    group_of_text: np.ndarray,
    *,
    rounds: int,
    seed: int,
    num_images: int | None = None,
) -> RandomNegatives:
    """Permute the images of a fold's pairs `rounds` times and keep the pairs that are not in the data.

    Left out are a text with any image that it, or an equal text, was given with, or with a near-duplicate of that.

    The image that a text was given with is mostly its true one, and in this fold. The true image of a mismatched text
    can be in any fold. So that negatives meet the true image no more often than mismatched pairs do, the given image is
    masked for as many negatives as there are images in other folds.

    Args:
        rows: (f,) the pairs of the fold; the other arrays are over all pairs, or all images.
        group_of_text: (m,) equal for texts with the same vector.
        num_images: number of images in the collection, where the arrays hold a sample of it.
    """
    rng = np.random.default_rng(seed)
    texts = np.tile(rows, rounds)
    images = np.concatenate([image_of_text[rng.permutation(rows)] for _ in range(rounds)])
    num_groups = int(group_of_image.max()) + 1
    given = np.unique(group_of_text[rows] * num_groups + group_of_image[image_of_text[rows]])
    drawn = group_of_text[texts] * num_groups + group_of_image[images]
    is_negative = ~np.isin(drawn, given)
    texts, images = texts[is_negative], images[is_negative]
    in_fold = len(np.unique(image_of_text[rows])) / (num_images or len(np.unique(image_of_text)))
    is_masked = rng.random(len(texts)) >= in_fold
    return RandomNegatives(images, texts, np.where(is_masked, image_of_text[texts], MISSING))
