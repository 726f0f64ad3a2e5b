"""Folds of the cross-fitting: which pairs are held out together.

All pairs of an image, and of its near-duplicates, are in one fold. A small collection is divided into folds several
times, and the statistics of a pair by all models that have not seen it are averaged; the mean ranks better than any of
them. Negatives have to be held out in every division, too. So images are divided into blocks once, a fold is a union
of blocks, and negatives are drawn within a block. Texts of images with near-duplicates have a little fewer of them,
because near-duplicates of the own image are no negatives and are in the same block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sremkit.data.pairs import MISSING

MAX_BLOCKS = 100
MIN_GROUPS_PER_BLOCK = 10  # on average: negatives of a text are made of the images of the others


@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of every pair in each of r divisions, and its block."""

    fold: np.ndarray  # (r, m) int64; MISSING for pairs that take no part
    block: np.ndarray  # (m,) int64, the pairs of a block are in one fold in each division
    num_blocks: int

    @property
    def repeats(self) -> int:
        return len(self.fold)


def single_division(fold: np.ndarray, folds: int) -> Folds:
    """One division, (m,), whose blocks are its folds."""
    return Folds(fold[None], fold, folds)


def repeated_folds(
    image_of_text: np.ndarray, group_of_image: np.ndarray, folds: int, *, repeats: int, seed: int
) -> Folds:
    """`repeats` divisions into balanced folds; one, if groups of near-duplicates are too few or too large for blocks.

    A block has at least twice as many pairs as the largest group, so that each pair has negatives in its block.
    """
    sizes = np.unique(group_of_image[image_of_text], return_counts=True)[1]
    most = min(MAX_BLOCKS, len(sizes) // MIN_GROUPS_PER_BLOCK, len(image_of_text) // (2 * sizes.max()))
    per_fold = most // folds
    if repeats < 2 or per_fold < 2:
        return single_division(balanced_folds(image_of_text, group_of_image, folds, seed=seed), folds)
    num_blocks = per_fold * folds
    block = balanced_folds(image_of_text, group_of_image, num_blocks, seed=seed)
    rng = np.random.default_rng([seed, 8])
    fold_of_block = [rng.permutation(num_blocks) % folds for _ in range(repeats)]
    return Folds(np.stack([of_block[block] for of_block in fold_of_block]), block, num_blocks)


def balanced_folds(image_of_text: np.ndarray, group_of_image: np.ndarray, folds: int, *, seed: int) -> np.ndarray:
    """The fold of each pair, (m,) int64: whole groups of near-duplicate images, nearly equal numbers of pairs."""
    group = group_of_image[image_of_text]  # (m,)
    sizes = np.bincount(group, minlength=int(group_of_image.max()) + 1)
    order = np.random.default_rng(seed).permutation(len(sizes))
    largest_first = order[np.argsort(-sizes[order], kind="stable")]
    filled = np.zeros(folds, dtype=np.int64)
    fold_of_group = np.zeros(len(sizes), dtype=np.int64)
    for number in largest_first:
        fold_of_group[number] = smallest = int(filled.argmin())
        filled[smallest] += sizes[number]
    return fold_of_group[group]


def hashed_folds(image_key: np.ndarray, folds: int, *, seed: int) -> np.ndarray:
    """The fold of each image, (n,) int64, from its key alone: processes that see different images agree on it."""
    mixed = (image_key.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
    return ((mixed >> np.uint64(32)) % np.uint64(folds)).astype(np.int64)


def of_readable(folds: Folds, readable: np.ndarray, num_pairs: int) -> Folds:
    """Folds of the pairs `readable` as folds of all `num_pairs` pairs; the others take no part."""
    fold, block = np.full((folds.repeats, num_pairs), MISSING), np.full(num_pairs, MISSING)
    fold[:, readable], block[readable] = folds.fold, folds.block
    return Folds(fold, block, folds.num_blocks)
