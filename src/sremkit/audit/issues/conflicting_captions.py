"""Near-duplicate images with conflicting captions: at least one of the captions is wrong.

Two captions conflict if the cosine of their vectors is that of captions of different images. A pair is reported if its
caption conflicts with every caption of the other images in its group of near-duplicates.
"""

from __future__ import annotations

import numpy as np

from sremkit.data.pairs import MISSING

QUANTILE = 0.9  # of the cosines of random captions, below which two captions conflict
NUM_RANDOM = 20_000


def find_conflicts(image_group: np.ndarray, image_of_text: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Which pairs have a caption that conflicts with those of near-duplicate images, (m,) bool.

    Args:
        image_group: (m,) int64, equal for near-duplicate images, or MISSING.
        vectors: (m, e) of the captions.
    """
    conflicts = np.zeros(len(image_group), dtype=bool)
    rows = np.flatnonzero(image_group != MISSING)
    if len(rows) == 0:
        return conflicts
    unit = np.asarray(vectors, dtype=np.float32)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    least = _random_cosine(unit, image_of_text)
    rows = rows[np.argsort(image_group[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(image_group[rows])) + 1):
        cosine = unit[members] @ unit[members].T
        other = image_of_text[members][:, None] != image_of_text[members]
        nearest = np.where(other, cosine, -np.inf).max(axis=1)
        conflicts[members] = other.any(axis=1) & (nearest < least)
    return conflicts


def _random_cosine(unit: np.ndarray, image_of_text: np.ndarray) -> float:
    """The quantile of the cosines of random captions of different images."""
    a, b = np.random.default_rng(0).integers(len(unit), size=(2, NUM_RANDOM))
    different = image_of_text[a] != image_of_text[b]
    cosine = np.einsum("ke,ke->k", unit[a[different]], unit[b[different]])
    return float(np.quantile(cosine, QUANTILE)) if len(cosine) else -np.inf
