"""Synthetic pairs for scoring: two views of a common latent vector; some pairs are shuffled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.data.features import ArrayFeatures
from sremkit.data.noise import make_noise
from sremkit.data.pairs import Pairs

# Small, so that scoring takes a second or two.
SMALL = ScoringSettings(
    folds=2, repeats=1, hidden_size=64, embed_size=32, batch_size=128, candidates=100, negatives=20_000
)

PRECISE = CutoffRule(precision=0.95)


def make_pairs(
    rate: float = 0.3, *, num_images: int = 500, captions: int = 3, fuzz: float = 0.5, seed: int = 0
) -> tuple[Pairs, np.ndarray]:
    """Linear views of an eight-dimensional latent vector, and which pairs are wrong."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(num_images, 8))
    truth = np.repeat(np.arange(num_images), captions)
    images = latent @ rng.normal(size=(8, 24)) + fuzz * rng.normal(size=(num_images, 24))
    texts = latent[truth] @ rng.normal(size=(8, 16)) + fuzz * rng.normal(size=(len(truth), 16))
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
