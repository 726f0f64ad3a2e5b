"""Pairs that are surely wrong, as many as one wants: texts given to other people's pictures.

What the out-of-fold model says of these is, but for chance, what it says of the wrong pairs among the given
ones. So of the two heaps that an audit has to tell apart, one is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.verdicts import NOBODY

MOST_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class WrongPairs:
    """Pairs made of a text and an image of the same fold that do not belong together."""

    text: np.ndarray  # (w,) row of the text
    image: np.ndarray  # (w,) number of the image
    hidden: np.ndarray  # (w,) an image that must not compete for the text, or NOBODY


def make_wrong_pairs(
    rows: np.ndarray,
    image_of_text: np.ndarray,
    group_of_image: np.ndarray,
    text_number: np.ndarray,
    *,
    rounds: int,
    seed: int,
    num_images: int | None = None,
) -> WrongPairs:
    """Give the texts of a fold to its pictures anew, `rounds` times, and keep what is no pair of the data.

    Left out are a text with its own picture or a copy of it, and with any picture that it, or the same text in
    another row, was given with.

    The picture that a text was given with is mostly its own, and in this fold. The own picture of a text that was given
    wrongly can be in any fold. So that made pairs meet it no more often than given wrong ones do, it is hidden from as
    many made pairs as there are pictures in other folds.

    Args:
        rows: (f,) the pairs of the fold; the other arrays are over all pairs, or all images.
        text_number: (m,) equal for texts with the same vector.
        num_images: how many pictures there are in all, where the arrays hold but some of them.
    """
    rng = np.random.default_rng(seed)
    texts = np.tile(rows, rounds)
    images = np.concatenate([image_of_text[rng.permutation(rows)] for _ in range(rounds)])
    num_groups = int(group_of_image.max()) + 1
    given = np.unique(text_number[rows] * num_groups + group_of_image[image_of_text[rows]])
    made = text_number[texts] * num_groups + group_of_image[images]
    wrong = ~np.isin(made, given)
    texts, images = texts[wrong], images[wrong]
    share_here = len(np.unique(image_of_text[rows])) / (num_images or len(np.unique(image_of_text)))
    hides = rng.random(len(texts)) >= share_here
    return WrongPairs(texts, images, np.where(hides, image_of_text[texts], NOBODY))


def number_texts(texts: Tensor) -> np.ndarray:
    """A number for each text, (m,) int64, equal where the vectors are equal."""
    # A few fixed sums tell vectors apart without sorting whole rows.
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(texts.shape[1], 3, generator=generator, dtype=torch.float64)
    sums = torch.cat([part.double() @ weights for part in texts.split(65536)])  # (m, 3)
    return np.unique(sums.numpy().round(9), axis=0, return_inverse=True)[1].reshape(-1)
