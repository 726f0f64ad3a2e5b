"""Pairs with regions and words: two coloured objects per image, and captions of which some are wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from made_pairs import from_arrays
from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import Pairs

COLORS = ("red", "blue", "green", "pink", "black")
KINDS = ("dog", "cat", "cow", "fox", "hen")
WIDTH = 12


def worded_pairs(
    num_images: int, *, shuffled: float, edited: float, seed: int = 0
) -> tuple[Pairs, ArrayFeatures, np.ndarray, np.ndarray]:
    """Pairs with vectors, the regions of their images, which are shuffled and which are wrong in one word."""
    rng = np.random.default_rng(seed)
    color, kind = (rng.integers(0, 5, size=(num_images, 2)) for _ in range(2))
    regions = np.zeros((num_images, 2, WIDTH))
    for thing in range(2):
        regions[np.arange(num_images), thing, color[:, thing]] = 1
        regions[np.arange(num_images), thing, 5 + kind[:, thing]] = 1
        regions[:, thing, 10 + thing] = 1
    regions += 0.1 * rng.normal(size=regions.shape)
    truth = np.repeat(np.arange(num_images), 3)
    words = np.stack([color[truth, 0], kind[truth, 0], color[truth, 1], kind[truth, 1]], axis=1)  # (m, 4)
    order = rng.permutation(len(truth))
    num_edited, num_shuffled = round(edited * len(truth)), round(shuffled * len(truth))
    is_edited, is_shuffled = np.zeros((2, len(truth)), dtype=bool)
    is_edited[order[:num_edited]] = True
    is_shuffled[order[num_edited : num_edited + num_shuffled]] = True
    place = rng.integers(0, 4, size=num_edited)
    rows = np.flatnonzero(is_edited)
    words[rows, place] = (words[rows, place] + rng.integers(1, 5, size=num_edited)) % 5
    image_of_text = truth.copy()
    image_of_text[is_shuffled] = (truth[is_shuffled] + rng.integers(1, num_images, num_shuffled)) % num_images
    texts = [f"a {COLORS[a]} {KINDS[b]} beside a {COLORS[c]} {KINDS[d]}" for a, b, c, d in words]
    # The vectors encode the kinds of both objects, not their colours.
    shown, described = (np.eye(5)[k].reshape(len(k), -1) for k in (kind, words[:, [1, 3]]))
    shown, described = (v + 0.1 * rng.normal(size=v.shape) for v in (shown, described))
    pairs = from_arrays(shown, described, image_of_text)
    features = ArrayFeatures(regions.astype(np.float32), name="regions")
    return replace(pairs, texts=texts), features, is_shuffled, is_edited
