"""Why a pair is flagged: the nearest right pairs, and the words that theirs do not have.

For a flagged pair, right pairs are those that are not flagged and match with a probability of at least one half. The
caption of the one with the most similar image shows what such an image is called, the image of the one with the most
similar caption what such a caption shows. A word is unsupported if none of the captions of the K most similar images
has it and it is rare in the collection: frequent words, such as "the", say nothing about an image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.audit.embed import read_vectors
from sremkit.data.pairs import Pairs
from sremkit.data.vocabulary import tokenize

NEIGHBORS = ("neighbor_text", "neighbor_text_id", "neighbor_image", "unsupported_words")
K = 20
MAX_FREQUENCY = 0.1  # of captions with a word, above which it is not reported
MAX_EXPLAINED = 20_000  # flagged pairs, the lowest probabilities first
MIN_PROB = 0.5
ROWS_PER_CHUNK = 512


def explain_flagged(
    pairs: Pairs, match_prob: np.ndarray, is_mismatch: np.ndarray, is_scored: np.ndarray, *, has_texts: bool = True
) -> dict[str, list[str | None]]:
    """The columns of `NEIGHBORS` for m pairs, None for pairs that are not flagged and for what is not known."""
    columns: dict[str, list[str | None]] = {name: [None] * len(pairs) for name in NEIGHBORS}
    flagged = np.flatnonzero(is_mismatch)
    flagged = flagged[np.argsort(match_prob[flagged], kind="stable")][:MAX_EXPLAINED]
    right = np.flatnonzero(is_scored & ~is_mismatch & (match_prob >= MIN_PROB))
    if len(flagged) == 0 or len(right) == 0:
        return columns
    vectors = read_vectors(pairs)
    images, texts = (F.normalize(x - x.mean(dim=0), dim=-1) for x in (vectors.images, vectors.texts))
    images = images[vectors.image_of_text]  # one row a pair
    by_image = right[nearest(images, flagged, right, K)]  # (f, k)
    by_text = right[nearest(texts, flagged, right, 1)[:, 0]]  # (f,)
    words = unsupported_words(pairs.texts, flagged, by_image) if has_texts else [None] * len(flagged)
    for place, row in enumerate(flagged.tolist()):
        first = int(by_image[place, 0])
        columns["neighbor_text"][row] = (pairs.texts[first] or None) if has_texts else None
        columns["neighbor_text_id"][row] = pairs.pair_ids[first]
        columns["neighbor_image"][row] = pairs.image_ids[int(pairs.image_of_text[by_text[place]])]
        columns["unsupported_words"][row] = words[place]
    return columns


def nearest(unit: Tensor, rows: np.ndarray, among: np.ndarray, k: int) -> np.ndarray:
    """Places in `among` of the k largest cosines with each of `rows`, the largest first: (f, k)."""
    candidates = unit[torch.from_numpy(among)]
    chunks = torch.from_numpy(rows).split(ROWS_PER_CHUNK)
    found = [(unit[chunk] @ candidates.T).topk(min(k, len(among)), dim=1).indices for chunk in chunks]
    return torch.cat(found).numpy()


def unsupported_words(texts: Sequence[str], rows: np.ndarray, neighbors: np.ndarray) -> list[str | None]:
    """For each of `rows` the rare words that no text of its `neighbors` (f, k) has, in order; None without one."""
    words = {row: _words(texts[row]) for row in np.unique(np.concatenate([rows, neighbors.ravel()])).tolist()}
    counts = Counter(word for text in texts for word in set(_words(text)))
    rare = max(MAX_FREQUENCY * len(texts), 1)
    found: list[str | None] = []
    for row, others in zip(rows.tolist(), neighbors.tolist(), strict=True):
        known = {word for other in others for word in words[other]}
        missing = [w for w in words[row] if w not in known and counts[w] <= rare]
        found.append(", ".join(dict.fromkeys(missing)) or None)
    return found


def _words(text: str) -> list[str]:
    return [token for token in tokenize(text) if any(character.isalnum() for character in token)]
