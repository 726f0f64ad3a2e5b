"""Pairs for judging, made of a common hidden meaning, and some of them shuffled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sremkit.audit.judging import JudgingSettings
from sremkit.data.features import ArrayFeatures
from sremkit.data.noise import make_noise
from sremkit.data.pairs import Pairs

# Little data need little: a second or two for each judging.
SMALL = JudgingSettings(
    folds=2, hidden_size=64, embed_size=32, batch_size=128, candidates=100, wrong_pairs=20_000
)


def make_pairs(
    rate: float = 0.3, *, num_images: int = 500, captions: int = 3, fuzz: float = 0.5, seed: int = 0
) -> tuple[Pairs, np.ndarray]:
    """Images and texts that show eight hidden numbers through different maps, and which pairs are wrong."""
    rng = np.random.default_rng(seed)
    meaning = rng.normal(size=(num_images, 8))
    truth = np.repeat(np.arange(num_images), captions)
    images = meaning @ rng.normal(size=(8, 24)) + fuzz * rng.normal(size=(num_images, 24))
    texts = meaning[truth] @ rng.normal(size=(8, 16)) + fuzz * rng.normal(size=(len(truth), 16))
    noise = make_noise(truth, rate=rate, protocol="caption", seed=seed)
    return from_arrays(images, texts, noise.image_of_text), noise.is_noisy


def from_arrays(images: np.ndarray, texts: np.ndarray, image_of_text: np.ndarray) -> Pairs:
    return Pairs(
        name="made",
        split="train",
        pair_ids=[f"pair {k}" for k in range(len(texts))],
        texts=[f"text {k}" for k in range(len(texts))],
        image_of_text=np.asarray(image_of_text, dtype=np.int64),
        image_ids=[f"image {k}" for k in range(len(images))],
        image_features=ArrayFeatures(images.astype(np.float32), name="image vectors"),
        text_features=ArrayFeatures(texts.astype(np.float32), name="text vectors"),
    )


def with_vectors(pairs: Pairs, *, images: np.ndarray | None = None, texts: np.ndarray | None = None) -> Pairs:
    """The same pairs with other vectors."""
    if images is not None:
        pairs = replace(pairs, image_features=ArrayFeatures(images.astype(np.float32), name="image vectors"))
    if texts is not None:
        pairs = replace(pairs, text_features=ArrayFeatures(texts.astype(np.float32), name="text vectors"))
    return pairs


def vectors_of(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(pairs.image_features, ArrayFeatures)
    assert isinstance(pairs.text_features, ArrayFeatures)
    return pairs.image_features.array.copy(), pairs.text_features.array.copy()
