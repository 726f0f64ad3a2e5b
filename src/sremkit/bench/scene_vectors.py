"""One vector for each scene and each of its captions, without learning from the pairing.

An image is the principal components of all its patches in order, a caption its words and pairs of close words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sremkit.data import Pairs
from sremkit.data.vocabulary import tokenize

COMPONENTS = 256
GRAMS = 800
NEAR = 5  # words: so far apart are the words of a pair at most


def scene_image_vectors(pairs: Pairs) -> np.ndarray:
    """The first principal components of all patches of an image, (n, COMPONENTS)."""
    assert pairs.image_features is not None
    patches = pairs.image_features.rows(np.arange(pairs.num_images)).values
    flat = patches.reshape(pairs.num_images, -1)  # (n, 36 · 204)
    flat = flat - flat.mean(axis=0)
    left, length, _ = np.linalg.svd(flat @ flat.T, hermitian=True)  # (n, n) is smaller than the other way round
    vectors = left[:, :COMPONENTS] * np.sqrt(length[:COMPONENTS])
    return (vectors / np.sqrt(np.mean(np.sum(vectors**2, axis=1)))).astype(np.float32)


class SceneCaptionVectors:
    """Which words and near pairs of words a caption holds, rare ones counting more.

    Args:
        texts: the captions in which words are counted.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = Counter(gram for text in texts for gram in _grams(text))
        frequent = counts.most_common(GRAMS)
        self._number = {gram: k for k, (gram, _) in enumerate(frequent)}
        self._weight = np.array([np.log(1 + len(texts) / count) for _, count in frequent], dtype=np.float32)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(m, GRAMS) float32, unit length."""
        vectors = np.zeros((len(texts), len(self._number)), dtype=np.float32)
        for row, text in enumerate(texts):
            known = [self._number[gram] for gram in _grams(text) if gram in self._number]
            vectors[row, known] = self._weight[known]
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _grams(text: str) -> set[tuple[str, ...]]:
    words = tokenize(text)
    pairs = {(first, second) for k, first in enumerate(words) for second in words[k + 1 : k + 1 + NEAR]}
    return pairs | {(word,) for word in words}
