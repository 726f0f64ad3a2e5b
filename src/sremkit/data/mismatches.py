"""Mismatches that are not permutations: pure functions of texts, images, vectors, a rate and a seed.

A permutation leaves the right image of every wrong caption in the collection, and its wrong captions are unrelated to
their images. Collections from the web are different in both. Each function here returns the wrong pairing or the wrong
captions, and nothing about which of them are wrong: that is read off the outcome. The same arguments give the same
outcome.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from sremkit.data.pairs import MISSING
from sremkit.errors import DataError

NEIGHBORS = 20  # of a caption, from which its wrong image is drawn
CHUNK = 1024  # captions whose neighbours are searched at a time
MIN_LETTERS = 3  # of a content word
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_FUNCTION_WORDS = """
    about above across after against all along also among and another any are around away back be because been
    before behind being below beneath between beyond both but can could did does doing down during each either else
    enough even every few for from full get gets getting has have having her here hers herself him himself his how
    into its itself just like many may more most much near nearby neither next non nor not now off onto other others
    our out over own past per same several she should since some someone something still such than that the their
    them themselves then there these they this those though through throughout till together too toward towards
    under underneath until upon use uses using very was were what when where which while who whose why will with
    within without would yet you your
"""
#: Words that say nothing about an image by themselves. Other languages have no list: there, length alone decides.
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def partner_absent(image_of_text: np.ndarray, rate: float, seed: int) -> np.ndarray:
    """Wrong captions come from images that are not in the collection.

    Some images are held out as donors, just enough of them. A fraction `rate` of the other captions is replaced by
    captions of donors.

    Args:
        image_of_text: (m,) the true image of each text.

    Returns:
        (m,) the image of each text, `MISSING` for a text that is left out: replaced captions, and those captions of
        donors that replaced none. No text that is left is paired with the image of a donor.
    """
    generator = np.random.default_rng(seed)
    images, image_index = np.unique(image_of_text, return_inverse=True)
    order = generator.permutation(len(images))
    donated = np.concatenate([[0], np.cumsum(np.bincount(image_index)[order])])  # captions of the first k images
    wanted = np.floor(rate * (len(image_of_text) - donated) + 1e-6).astype(np.int64)
    num_donors = int(np.argmax(donated >= wanted))  # of all captions none is wanted, so there is a first
    if num_donors == len(images) and len(images):
        raise DataError("too few images to hold some of them out as donors of wrong captions; take a lower noise rate")
    is_donor = np.isin(image_index, order[:num_donors])
    replaced = generator.permutation(np.flatnonzero(~is_donor))[: wanted[num_donors]]
    wrong = generator.permutation(np.flatnonzero(is_donor))[: len(replaced)]
    paired = np.where(is_donor, MISSING, image_of_text)
    paired[replaced] = MISSING
    paired[wrong] = image_of_text[replaced]
    return paired


def near(
    image_of_text: np.ndarray, vectors: np.ndarray, rate: float, seed: int, *, neighbors: int = NEIGHBORS
) -> np.ndarray:
    """Wrong captions come from similar images: an image whose caption is among the nearest ones of other images.

    Some of them will describe the other image too. Images can end up with more or fewer captions than before.

    Args:
        image_of_text: (m,) the true image of each text.
        vectors: (m, d) a sentence vector of each text; compared by cosine.
        neighbors: the image is drawn from so many nearest captions.

    Returns:
        (m,) the image of each text.
    """
    generator = np.random.default_rng(seed)
    unit = np.asarray(vectors, dtype=np.float32)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    chosen = generator.permutation(len(image_of_text))[: _count(rate, len(image_of_text))]
    paired = image_of_text.copy()
    for start in range(0, len(chosen), CHUNK):
        rows = chosen[start : start + CHUNK]
        cosines = unit[rows] @ unit.T  # (chunk, m)
        cosines[image_of_text[rows, None] == image_of_text[None]] = -np.inf
        k = min(neighbors, cosines.shape[1])
        nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        nearest = np.take_along_axis(nearest, np.argsort(-np.take_along_axis(cosines, nearest, 1), kind="stable"), 1)
        available = np.isfinite(np.take_along_axis(cosines, nearest, 1)).sum(axis=1)  # texts of other images
        drawn = np.floor(generator.random(len(rows)) * available).astype(np.int64)
        other = nearest[np.arange(len(rows)), drawn]
        paired[rows] = np.where(available > 0, image_of_text[other], image_of_text[rows])
    return paired


def shared_word(texts: Sequence[str], image_of_text: np.ndarray, rate: float, seed: int) -> np.ndarray:
    """A wrong caption shares a content word with a right caption of its image.

    Captions whose content words occur with no other image stay right, so that the realised rate can be lower.

    Returns:
        (m,) the image of each text.
    """
    generator = np.random.default_rng(seed)
    words = [content_words(text) for text in texts]
    having: dict[str, list[int]] = {}
    for text, own in enumerate(words):
        for word in own:
            having.setdefault(word, []).append(text)
    paired, wanted = image_of_text.copy(), _count(rate, len(texts))
    for text in generator.permutation(len(texts)):
        if wanted == 0:
            break
        for index in generator.permutation(len(words[text])):
            others = np.array(having[words[text][index]])
            others = others[image_of_text[others] != image_of_text[text]]
            if len(others):
                paired[text] = image_of_text[others[generator.integers(len(others))]]
                wanted -= 1
                break
    return paired


def one_word(texts: Sequence[str], image_of_text: np.ndarray, rate: float, seed: int) -> list[str]:
    """A wrong caption differs from the right one in one content word.

    The new word stands elsewhere in the collection between the same two words ("a DOG runs", "a HORSE runs"), and in no
    caption of the image. Captions without such a place stay right, so that the realised rate can be lower.

    Returns:
        (m,) the texts.
    """
    generator = np.random.default_rng(seed)
    spans = [[match.span() for match in _WORD.finditer(text)] for text in texts]
    words = [[text[a:b].lower() for a, b in places] for text, places in zip(texts, spans, strict=True)]
    fillers: dict[tuple[str, str], dict[str, None]] = {}  # in order of appearance, so that the seed decides
    said: dict[int, set[str]] = {}
    for own, image in zip(words, image_of_text.tolist(), strict=True):
        said.setdefault(image, set()).update(own)
        for position, word in enumerate(own):
            if _is_content(word):
                fillers.setdefault(_frame(own, position), {})[word] = None
    changed, wanted = list(texts), _count(rate, len(texts))
    for text in generator.permutation(len(texts)):
        if wanted == 0:
            break
        own = words[text]
        for position in generator.permutation([k for k, word in enumerate(own) if _is_content(word)]):
            new = [word for word in fillers[_frame(own, position)] if word not in said[int(image_of_text[text])]]
            if new:
                start, end = spans[text][position]
                changed[text] = changed[text][:start] + new[generator.integers(len(new))] + changed[text][end:]
                wanted -= 1
                break
    return changed


def content_words(text: str) -> list[str]:
    """The different content words of a text, in order of appearance and lower case."""
    return list(dict.fromkeys(word for word in map(str.lower, _WORD.findall(text)) if _is_content(word)))


def _is_content(word: str) -> bool:
    return len(word) >= MIN_LETTERS and word not in FUNCTION_WORDS


def _frame(words: Sequence[str], position: int) -> tuple[str, str]:
    """The words before and after a position, empty at the ends."""
    before = words[position - 1] if position > 0 else ""
    return before, words[position + 1] if position + 1 < len(words) else ""


def _count(rate: float, number: int) -> int:
    # The product may be too small by rounding: 0.29 * 100 is 28.999999999999996.
    return math.floor(rate * number + 1e-6)
