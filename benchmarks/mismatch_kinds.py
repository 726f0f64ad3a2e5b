"""Collections of Flickr8k's vectors in which some captions are wrong in one of six ways, for measuring an audit.

    random          captions exchanged among pairs drawn at random
    shared word     captions exchanged among pairs whose captions have a content word in common
    near caption    one of the ten nearest captions of other images, which the collection does not hold
    partner absent  a caption of an image that the collection does not hold
    one word wrong  one content word replaced by another of the vocabulary
    whole image     images exchanged, each with all captions of another one

The truth stays outside of the pairs that are scored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sremkit.audit.scoring.types import PairVectors
from sremkit.data import Pairs
from sremkit.data.pairs import MISSING

KINDS = ("random", "shared word", "near caption", "partner absent", "one word wrong", "whole image")
NEAREST = 10
WORD = re.compile(r"[a-z]{3,}")
# Frequent words that say nothing about the image.
STOP_WORDS = frozenset(
    [
        "the",
        "and",
        "with",
        "for",
        "are",
        "is",
        "his",
        "her",
        "its",
        "their",
        "from",
        "into",
        "onto",
        "that",
        "this",
        "there",
        "while",
        "who",
        "which",
        "wearing",
        "two",
        "three",
        "man",
        "men",
        "woman",
        "women",
        "boy",
        "girl",
        "people",
        "person",
        "one",
        "some",
        "other",
        "another",
        "front",
        "near",
        "over",
        "through",
        "down",
        "around",
        "out",
        "off",
        "next",
        "has",
        "have",
        "been",
        "being",
        "holding",
        "standing",
        "looking",
        "black",
        "white",
        "red",
        "blue",
        "brown",
    ]
)


@dataclass(frozen=True, eq=False)
class NoisyCollection:
    """Vectors of pairs, with the truth about them."""

    vectors: PairVectors
    captions: list[str]
    is_noisy: np.ndarray  # (m,) bool
    true_image: np.ndarray  # (m,) number of the image that the caption is of, or MISSING where it is absent

    @property
    def rate(self) -> float:
        return float(self.is_noisy.mean())


class TextEncoder:
    """Vectors of new captions by the encoder of Flickr8k's stored ones; each caption is encoded once."""

    def __init__(self) -> None:
        self.known: dict[str, np.ndarray] = {}

    def __call__(self, captions: Sequence[str]) -> np.ndarray:
        from sremkit.features.encoders.minilm import MiniLMEncoder

        new = [caption for caption in dict.fromkeys(captions) if caption not in self.known]
        if new:
            encoder = MiniLMEncoder()
            self.known |= dict(zip(new, encoder.encode(new), strict=True))
        return np.stack([self.known[caption] for caption in captions])


def make_collection(
    pairs: Pairs,
    kind: str,
    rate: float,
    *,
    size: int,
    captions_per_image: int = 1,
    seed: int = 0,
    encoder: TextEncoder | None = None,
) -> NoisyCollection:
    """Draw images with some of their captions, and make about `rate` of the captions wrong.

    Args:
        pairs: with one vector for each image and text; all captions of an image.
        size: number of pairs.
        encoder: of captions with one wrong word; needed for that kind alone.
    """
    assert pairs.image_features is not None
    assert pairs.text_features is not None
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    captions_of = defaultdict[int, list[int]](list)
    for row, image in enumerate(pairs.image_of_text.tolist()):
        captions_of[image].append(row)
    chosen_images = rng.permutation(pairs.num_images)[: size // captions_per_image]
    rows = np.concatenate([rng.permutation(captions_of[int(k)])[:captions_per_image] for k in chosen_images])
    number = np.full(pairs.num_images, MISSING)
    number[chosen_images] = np.arange(len(chosen_images))
    given = number[pairs.image_of_text[rows]]
    wrong = np.sort(rng.permutation(len(rows))[: round(rate * len(rows))])
    donors = rows.copy()  # the row of `pairs` whose caption each pair has
    texts = [pairs.texts[row] for row in rows]
    vectors = pairs.text_features.rows(rows).values.astype(np.float32)
    if kind == "one word wrong":
        texts = _replace_words(texts, wrong, pairs.texts, rng)
        if len(wrong):
            assert encoder is not None
            vectors[wrong] = encoder([texts[k] for k in wrong])
        is_noisy = np.zeros(len(rows), dtype=bool)
        is_noisy[wrong] = True
    else:
        if kind == "whole image":
            block = captions_per_image * np.sort(
                rng.permutation(len(chosen_images))[: round(rate * len(chosen_images))]
            )
            moved = block[:, None] + np.arange(captions_per_image)
            donors[moved] = rows[np.roll(moved, 1, axis=0)]
        elif kind == "random":
            donors[wrong] = rows[wrong][_derangement(given[wrong], rng)]
        elif kind == "shared word":
            donors[wrong] = rows[wrong][_shared_words([texts[k] for k in wrong], given[wrong], rng)]
        elif kind == "near caption":
            unused = np.setdiff1d(np.arange(len(pairs.texts)), rows)
            donors[wrong] = _nearest(pairs, rows[wrong], unused, rng)
        else:
            absent = np.flatnonzero(number[pairs.image_of_text] == MISSING)
            donors[wrong] = rng.permutation(absent)[: len(wrong)]
        is_noisy = pairs.image_of_text[donors] != pairs.image_of_text[rows]
        vectors = pairs.text_features.rows(donors).values.astype(np.float32)
        texts = [pairs.texts[row] for row in donors]
    images = pairs.image_features.rows(chosen_images).values.astype(np.float32)
    image_emb, text_emb, image_of_text = (torch.from_numpy(array) for array in (images, vectors, given))
    collection = PairVectors(image_emb, text_emb, image_of_text, np.ones(len(rows), dtype=bool))
    return NoisyCollection(collection, texts, is_noisy, number[pairs.image_of_text[donors]])


def _derangement(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A permutation in which as good as no caption keeps its image."""
    order = rng.permutation(len(image))
    place = np.empty(len(image), dtype=np.int64)
    place[order] = np.roll(order, 1)
    return place


def _shared_words(texts: list[str], image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A permutation that gives a caption the place of one with a common content word, where one is left."""
    words = [content_words(text) for text in texts]
    holders = defaultdict[str, list[int]](list)
    for k, some in enumerate(words):
        for word in some:
            holders[word].append(k)
    place, taken = np.arange(len(texts)), np.zeros(len(texts), dtype=bool)
    for k in rng.permutation(len(texts)).tolist():
        others = [o for word in sorted(words[k]) for o in holders[word] if not taken[o] and image[o] != image[k]]
        if others:
            place[k] = others[int(rng.integers(len(others)))]
            taken[place[k]] = True
    # A caption that found none keeps its own; if that was taken, it gets one that is left.
    left = np.flatnonzero(~taken)
    kept = np.flatnonzero(place == np.arange(len(texts)))
    place[kept] = left[: len(kept)]
    return place


def _nearest(pairs: Pairs, rows: np.ndarray, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each caption one of the nearest of the pool that is of another image, and that no other caption got."""
    assert pairs.text_features is not None
    unit = [pairs.text_features.rows(some).values.astype(np.float32) for some in (rows, pool)]
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in unit]
    found, used = rows.copy(), set[int]()
    for start in range(0, len(rows), 512):
        cosine = unit[0][start : start + 512] @ unit[1].T
        nearest = np.argpartition(-cosine, 4 * NEAREST, axis=1)[:, : 4 * NEAREST]
        for k, (row, some) in enumerate(zip(rows[start : start + 512], nearest, strict=True)):
            ordered = pool[some[np.argsort(-cosine[k, some])]]
            same_image = pairs.image_of_text[ordered] == pairs.image_of_text[row]
            free = [int(o) for o in ordered[~same_image][:NEAREST] if int(o) not in used]
            if free:
                found[start + k] = free[int(rng.integers(len(free)))]
                used.add(int(found[start + k]))
    return found


def _replace_words(texts: list[str], wrong: np.ndarray, corpus: Sequence[str], rng: np.random.Generator) -> list[str]:
    vocabulary = [word for text in corpus[:5000] for word in sorted(content_words(text))]  # by frequency
    texts = list(texts)
    for k in wrong.tolist():
        own = sorted(content_words(texts[k])) or [texts[k].split()[0].lower()]
        old = own[int(rng.integers(len(own)))]
        new = old
        while new == old:
            new = vocabulary[int(rng.integers(len(vocabulary)))]
        texts[k] = re.sub(rf"\b{re.escape(old)}\b", new, texts[k], flags=re.IGNORECASE)
    return texts


def content_words(text: str) -> set[str]:
    return {word for word in WORD.findall(text.lower()) if word not in STOP_WORDS}
