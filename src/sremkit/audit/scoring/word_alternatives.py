"""Words that are interchangeable in context, found from the texts alone by distributional similarity.

    similarity(a, b) = sum_l √(P(l before a) P(l before b)) · sum_r √(P(r after a) P(r after b))

is 1 for words with the same distribution of neighbours and 0 for words that share none. Words that are similar enough
are alternatives: colours of colours, "left" of "right". Reference: Bhattacharyya 1943 for the coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sremkit.data.vocabulary import PAD, SPECIAL_WORDS, Vocabulary
from sremkit.errors import DataError

MIN_SIMILARITY = 0.5
MIN_COUNT = 5  # of a word: with fewer occurrences its neighbours say little
MAX_VOCAB = 3000
MAX_WORDS = 60  # of a text; what follows is cut


@dataclass(frozen=True, eq=False)
class WordAlternatives:
    """Texts as token ids, and which words are alternatives of which."""

    tokens: Tensor  # (m, w) int64, PAD where absent
    alternatives: Tensor  # (v, v) bool: row a holds the alternatives of word a, without a itself

    @property
    def vocab_size(self) -> int:
        return len(self.alternatives)

    @cached_property
    def is_slot(self) -> Tensor:
        """Which words have an alternative: (v,) bool."""
        return self.alternatives.any(dim=1)


def find_alternatives(texts: Sequence[str]) -> WordAlternatives | None:
    """Tokenize all texts and find alternatives; None where no word has one."""
    try:
        frequent = Vocabulary.build(texts, min_count=MIN_COUNT)
    except DataError:  # no word occurs so often
        return None
    vocabulary = Vocabulary(frequent.words[: MAX_VOCAB + len(SPECIAL_WORDS)])
    encoded = [vocabulary.encode(text) for text in texts]
    encoded = [ids if len(ids) <= MAX_WORDS else ids[: MAX_WORDS - 1] + ids[-1:] for ids in encoded]  # keep <end>
    # One column of padding more than the longest text: every word then has a right neighbour.
    tokens = np.full((len(texts), max(map(len, encoded)) + 1), PAD, dtype=np.int64)
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids)] = ids
    alternatives = neighbor_similarity(tokens, len(vocabulary)) >= MIN_SIMILARITY
    if not alternatives.any():
        return None
    return WordAlternatives(torch.from_numpy(tokens), torch.from_numpy(alternatives))


def neighbor_similarity(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """(v, v) similarity of the neighbours of any two words; 0 for a word with itself and for special words."""
    first, second = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
    bigrams = np.bincount(first * vocab_size + second, minlength=vocab_size**2)
    bigrams = bigrams.reshape(vocab_size, vocab_size).astype(np.float32)
    similarity = _bhattacharyya(bigrams) * _bhattacharyya(bigrams.T)
    np.fill_diagonal(similarity, 0)
    similarity[: len(SPECIAL_WORDS)] = 0
    similarity[:, : len(SPECIAL_WORDS)] = 0
    return similarity


def _bhattacharyya(counts: np.ndarray) -> np.ndarray:
    roots = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return roots @ roots.T
