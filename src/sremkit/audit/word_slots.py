"""Words that could stand in each other's place, found from the texts alone.

    alike(a, b) = sum_l √(P(l before a) P(l before b)) · sum_r √(P(r after a) P(r after b))

is 1 for words with the same neighbours and 0 for words that share none. Words that are alike enough are
alternatives: colours of colours, "left" of "right". Reference: Bhattacharyya 1943 for the overlap of two distributions.
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

ALIKE = 0.5
FEWEST_USES = 5  # of a word: with fewer, its neighbours say little
MOST_WORDS = 3000
LONGEST = 60  # words; what follows in a longer text is not looked at


@dataclass(frozen=True, eq=False)
class WordSlots:
    """Texts as numbers of words, and which words are alternatives of which."""

    numbers: Tensor  # (m, w) int64, 0 where absent
    alternatives: Tensor  # (v, v) bool: row a holds what may stand in the place of a, and not a itself

    @property
    def vocab_size(self) -> int:
        return len(self.alternatives)

    @cached_property
    def is_slot(self) -> Tensor:
        """Which words have an alternative: (v,) bool."""
        return self.alternatives.any(dim=1)


def find_slots(texts: Sequence[str]) -> WordSlots | None:
    """Number the words of all texts and find alternatives; None where no word has one."""
    try:
        frequent = Vocabulary.build(texts, min_count=FEWEST_USES)
    except DataError:  # no word is used so often
        return None
    vocabulary = Vocabulary(frequent.words[: MOST_WORDS + len(SPECIAL_WORDS)])
    encoded = [vocabulary.encode(text) for text in texts]
    encoded = [
        n if len(n) <= LONGEST else n[: LONGEST - 1] + n[-1:] for n in encoded
    ]  # the end stays the end
    # One place more than the longest needs: every word then has somebody on its right.
    padded = np.full((len(texts), max(map(len, encoded)) + 1), PAD, dtype=np.int64)
    for row, numbers in enumerate(encoded):
        padded[row, : len(numbers)] = numbers
    alternatives = alike_neighbors(padded, len(vocabulary)) >= ALIKE
    if not alternatives.any():
        return None
    return WordSlots(torch.from_numpy(padded), torch.from_numpy(alternatives))


def alike_neighbors(numbers: np.ndarray, vocab_size: int) -> np.ndarray:
    """How alike the neighbours of any two words are: (v, v), 0 for a word with itself and for special ones."""
    first, second = numbers[:, :-1].ravel(), numbers[:, 1:].ravel()
    after = np.bincount(first * vocab_size + second, minlength=vocab_size**2)
    after = after.reshape(vocab_size, vocab_size).astype(np.float32)
    alike = _overlap(after) * _overlap(after.T)
    np.fill_diagonal(alike, 0)
    alike[: len(SPECIAL_WORDS)] = 0
    alike[:, : len(SPECIAL_WORDS)] = 0
    return alike


def _overlap(counts: np.ndarray) -> np.ndarray:
    roots = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return roots @ roots.T
