"""Negatives: pairs of a text and an image of one fold that were not given together.

Random negatives are texts with the images of other pairs. Their scores, by models that have not seen the fold, are the
null distribution: but for chance, the distribution of the mismatched pairs among the given ones.

Near negatives are wrong too, but nearer to right. Real mistakes are often near: the caption of a similar image, or of
one with the same object. Their statistics lie between those of random negatives and of matched pairs, and there they
tell how many mismatches of such a kind the given pairs could hold. They are made of the given pairs of a fold, most of
which match:

    near by text    the image, with one of the texts of other images that are nearest to its text
    near by image   the text, with one of the images that are nearest to its image
    partner absent  the text, with a random image, where the image that it was given with is no candidate
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sremkit.audit.scoring.near_duplicates import product
from sremkit.data.pairs import MISSING

MAX_ROUNDS = 50  # of random negatives

NEAR_KINDS = ("near by text", "near by image", "partner absent")
NEAREST = 0.02  # fraction of the fold's texts, or images, that count as near
MIN_NEAREST = 5
MAX_SOURCES = 4_000  # pairs of a fold that near negatives are made of
MAX_POOL = 20_000  # texts, or images, that near ones are sought among
QUERIES_PER_CHUNK = 512


class RandomNegatives(NamedTuple):
    """Pairs of a text and an image of one fold that were not given together."""

    image: np.ndarray  # (w,) number of the image
    text: np.ndarray  # (w,) row of the text
    masked: np.ndarray  # (w,) an image that must not be a candidate for the text, or MISSING


NO_NEGATIVES = RandomNegatives(*np.zeros((3, 0), dtype=np.int64))


def draw_negatives(
    rows: np.ndarray,
    image_of_text: np.ndarray,
    group_of_image: np.ndarray,
    group_of_text: np.ndarray,
    *,
    rounds: int,
    in_fold: float = 1.0,
    seed: int,
    repeat: int = 0,
) -> RandomNegatives:
    """Permute the images of some held-out pairs `rounds` times and keep the pairs that are not in the data.

    Left out are a text with any image that it, or an equal text, was given with, or with a near-duplicate of that.

    The image that a text was given with is mostly its true one, and in this fold. The true image of a mismatched text
    can be in any fold. So that negatives meet the true image no more often than mismatched pairs do, the given image is
    masked for as many negatives as there are images in other folds.

    Args:
        rows: (f,) the pairs, of one fold; the other arrays are over all pairs, or all images.
        group_of_text: (m,) equal for texts with the same vector.
        in_fold: fraction of the collection's images that are in the fold.
        repeat: the same negatives with other given images masked.
    """
    rng = np.random.default_rng(seed)
    texts = np.tile(rows, rounds)
    images = np.concatenate([image_of_text[rng.permutation(rows)] for _ in range(rounds)])
    num_groups = int(group_of_image.max()) + 1
    given = np.unique(group_of_text[rows] * num_groups + group_of_image[image_of_text[rows]])
    drawn = group_of_text[texts] * num_groups + group_of_image[images]
    is_negative = ~np.isin(drawn, given)
    texts, images = texts[is_negative], images[is_negative]
    mask_rng = np.random.default_rng([seed, repeat]) if repeat else rng
    is_masked = mask_rng.random(len(texts)) >= in_fold
    return RandomNegatives(images, texts, np.where(is_masked, image_of_text[texts], MISSING))


class NearNegatives(NamedTuple):
    """Pairs of a text and an image of one fold that were not given together; numbers are within the fold."""

    image: np.ndarray  # (v,) number of the image
    text: np.ndarray  # (v,) number of the text
    masked: np.ndarray  # (v,) an image that must not be a candidate for the text, or MISSING
    source: np.ndarray  # (v,) the given pair that it was made of
    kind: np.ndarray  # (v,) int64, a place in `NEAR_KINDS`


NO_NEAR_NEGATIVES = NearNegatives(*np.zeros((5, 0), dtype=np.int64))


def draw_near_negatives(
    images: np.ndarray,
    texts: np.ndarray,
    image_of_text: np.ndarray,
    group_of_image: np.ndarray,
    group_of_text: np.ndarray,
    *,
    seed: int,
) -> NearNegatives:
    """Make one negative of each kind of every pair of a fold, or of MAX_SOURCES of them.

    Left out are an image with any text that it, or a near-duplicate of it, was given with, or with an equal text.

    Args:
        images: (n, d) vectors of the fold's images, texts: (m, e) of its texts, pair k is `image_of_text[k]` with k.
        group_of_image: (n,) equal for near-duplicates; group_of_text: (m,) equal for equal texts.
    """
    if len(texts) < 2 or len(images) < 2:
        return NO_NEAR_NEGATIVES
    rng = np.random.default_rng([seed, 4])
    source = np.sort(rng.permutation(len(texts))[:MAX_SOURCES])
    own = image_of_text[source]
    of_text = _one_of_the_nearest(texts, source, rng)
    of_image = _one_of_the_nearest(images, own, rng)
    at_random = image_of_text[rng.permutation(len(texts))[: len(source)]]
    unmasked = np.full(len(source), MISSING)
    made = [(own, of_text, unmasked), (of_image, source, unmasked), (at_random, source, own)]
    given = _codes(group_of_image[image_of_text], group_of_text, group_of_text)
    parts = []
    for kind, (image, text, masked) in enumerate(made):
        is_negative = ~np.isin(_codes(group_of_image[image], group_of_text[text], group_of_text), given)
        kinds = np.full(len(source), kind)
        parts.append([array[is_negative] for array in (image, text, masked, source, kinds)])
    return NearNegatives(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _codes(image_group: np.ndarray, text_group: np.ndarray, all_text_groups: np.ndarray) -> np.ndarray:
    return image_group * (int(all_text_groups.max(initial=0)) + 1) + text_group


def _one_of_the_nearest(vectors: np.ndarray, queries: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each query, the number of one of its nearest other vectors by cosine, drawn at random."""
    pool = np.sort(rng.permutation(len(vectors))[:MAX_POOL])
    centred = vectors - vectors.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    count = min(max(MIN_NEAREST, round(NEAREST * len(pool))), len(pool) - 1)
    found = []
    for start in range(0, len(queries), QUERIES_PER_CHUNK):
        chunk = queries[start : start + QUERIES_PER_CHUNK]
        cosine = product(unit[chunk], unit[pool].T)
        cosine[chunk[:, None] == pool] = -np.inf
        nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        chosen = rng.integers(count, size=len(chunk))
        found.append(pool[nearest[np.arange(len(chunk)), chosen]])
    return np.concatenate(found)
