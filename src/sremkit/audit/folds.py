"""Parts of the data that are left out in turn, such that a picture is never in two of them.

All captions of a picture are in one part, and so are pictures that look the same: a model that has seen the copy
of a picture has seen the picture.
"""

from __future__ import annotations

import numpy as np

from sremkit.audit.near_duplicates import ALONE, picture_groups

LARGEST_GROUP = 0.1  # of all images: so many are no copies of each other, but vectors that say little


def split_folds(
    image_of_text: np.ndarray, group_of_image: np.ndarray, folds: int, *, seed: int
) -> np.ndarray:
    """The fold of each pair, (m,) int64: whole groups of images, folds of nearly equal numbers of pairs."""
    group = group_of_image[image_of_text]  # (m,)
    sizes = np.bincount(group, minlength=int(group_of_image.max()) + 1)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[
        np.argsort(-sizes[order], kind="stable")
    ]  # the largest first, or the last one tips the scale
    filled = np.zeros(folds, dtype=np.int64)
    fold_of_group = np.zeros(len(sizes), dtype=np.int64)
    for number in order:
        fold_of_group[number] = smallest = int(filled.argmin())
        filled[smallest] += sizes[number]
    return fold_of_group[group]


def group_lookalikes(images: np.ndarray) -> np.ndarray:
    """A number for each image, (n,) int64, equal for images that look the same."""
    # Centred: the vectors of some encoders all lie in one narrow cone, where everything is alike.
    groups = picture_groups(images - images.mean(axis=0))
    alone = groups == ALONE
    if np.bincount(groups[~alone], minlength=1).max() > max(LARGEST_GROUP * len(images), 2):
        return np.arange(len(images))
    numbers = groups.copy()
    numbers[alone] = groups.max() + 1 + np.arange(int(alone.sum()))
    return numbers
