"""One caption on many unrelated images.

Images of one caption may resemble each other, as those of "a dog runs through the grass" do. They are unrelated if
their mean cosine, from the mean of all images, is about that of random images.
"""

from __future__ import annotations

import numpy as np

from sremkit.data.pairs import MISSING

MIN_IMAGES = 5  # near-duplicates count once
MAX_COSINE = 0.06  # mean over pairs of images; 0 for random ones


def count_unrelated_images(
    caption_group: np.ndarray, image_group: np.ndarray, image_of_text: np.ndarray, vectors: np.ndarray
) -> np.ndarray:
    """For each pair the number of unrelated images with its caption, (m,) int64; MISSING where they are few or alike.

    Args:
        caption_group: (m,) int64, equal for equal captions, or MISSING.
        image_group: (m,) int64, equal for near-duplicate images, or MISSING.
        vectors: (n, d) of the images.
    """
    found = np.full(len(caption_group), MISSING, dtype=np.int64)
    rows = np.flatnonzero(caption_group != MISSING)
    if len(rows) == 0:
        return found
    center = np.asarray(vectors, dtype=np.float32).mean(axis=0)
    rows = rows[np.argsort(caption_group[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(caption_group[rows])) + 1):
        # A near-duplicate has the number of its group, another image a negative one.
        image = image_of_text[members]
        group = np.where(image_group[members] == MISSING, -1 - image, image_group[members])
        _, first = np.unique(group, return_index=True)
        if len(first) >= MIN_IMAGES and _mean_cosine(vectors[image[first]] - center) <= MAX_COSINE:
            found[members] = len(first)
    return found


def _mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine of all pairs of different rows, in time linear in their number."""
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(norm, 1e-12)
    k = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (k * (k - 1)))
